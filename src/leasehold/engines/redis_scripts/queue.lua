-- The queue, as the scripts that may join it see it.

local TURN, NEAR, LONGEST_SILENCE = 2000000, 8, 75000000
local QUEUE_KEPT_MS, KEPT_ANEW_EVERY = '7200000', 64

-- For how long one with so many in front may keep silent. Only the head is woken by a release; the others look by
-- themselves whether it hangs, the nearer the more often.
local function silence_at(rank)
  if rank == 0 then return LONGEST_SILENCE end
  return math.min(rank * (rank + 1) / 2 * TURN, LONGEST_SILENCE)
end

-- How long after the end of a lease who has so many in front looks for itself.
local function turns_of(rank)
  return rank > NEAR and rank * TURN or 0
end

-- Join the queue, or stay in it. Answers when the place is given up unless its owner asks again.
local function line_up(holder, queued, ask_again, patience)
  local gives_up = now + math.min(patience, ask_again) + LATENESS
  local last
  if not queued then
    last = redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')[2] or 0
    redis.call('ZADD', KEYS[4], string.format('%.0f', last + 1), holder)
  end
  redis.call('ZADD', KEYS[5], string.format('%.0f', gives_up), holder)
  -- Who waits for long asks again, and others come: once in a while is often enough.
  if queued or last % KEPT_ANEW_EVERY == 0 then
    for key = 4, 6 do redis.call('PEXPIRE', KEYS[key], QUEUE_KEPT_MS) end
  end
  return gives_up
end
