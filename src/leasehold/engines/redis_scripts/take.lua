-- Take the name and mint a token, or refuse and (with patience) queue.
-- Answers '<token> <holder>', or {ask_again [, the incumbent's token, beat, lasts, about]}.

local holder, floor, mode, limit = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[6])
local ttl, delay, about = string.match(ARGV[5], '^(%d+) (%d+) (.*)$')
ttl, delay = tonumber(ttl), tonumber(delay)
local patience, suspect_token, suspect_beat = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local address = ARGV[10]

-- How many are in front, and whether I am in the queue already.
local function find_rank()
  if sweep_at == 0 then return 0, false end
  local rank = redis.call('ZRANK', QUEUE, holder)
  if rank then return rank, true end
  return redis.call('ZCARD', QUEUE), false
end

-- Whether everyone in front could have stepped in.
local function all_before_fit(rank)
  if rank == 0 or kind == 'none' then return true end
  for _, other in ipairs(redis.call('ZRANGE', QUEUE, 0, rank - 1)) do
    local place = place_of(other)
    if place and not fits(place.mode, place.limit) then return false end
  end
  return true
end

local function grant(rank)
  if not mint(floor) then return redis.error_reply('LEASEHOLD no token is left for this name') end
  local mine = {holder = holder, token = token, renewed = now, lasts = ttl, expires = now + ttl, since = now, beat = 0,
    delay = delay, about = about}
  if mode == 'exclusive' then seat = mine else kind, taken = mode, taken + 1 end
  put_seat(mine)
  if sweep_at ~= 0 then forget_places(redis.call('ZRANGE', QUEUE, 0, rank)) end
  turn_since = now
  wake_next()
  save()
  return number(token) .. ' ' .. holder
end

local function queue(ask_again, queued)
  local place = queued and place_of(holder)
    or {mode = mode, limit = limit, since = number(now), floor = ARGV[2], terms = ARGV[5]}
  redis.call('HSET', PLACES, holder, string.format('%s %.0f %s %s %s %s',
    place.mode, place.limit, place.since, place.floor, address, place.terms))
  local gives_up = line_up(holder, queued, ask_again, patience)
  if sweep_at == 0 or gives_up < sweep_at then
    sweep_at = gives_up
    changed = true
  end
end

local function first_to_end()
  if seat or kind == 'none' then return seat end
  return seat_of(string.sub(redis.call('ZRANGE', ENDS, 0, 0)[1], 17))
end

local function refuse(rank, queued, before_fit)
  local incumbent = first_to_end()
  local starts = math.max(before_fit and turn_since or incumbent.expires, closed_until)
  -- When the clock was set back, a whole lease is what the asker has to watch go by without a beat.
  if not before_fit then starts = math.min(starts, now + incumbent.lasts) end
  local ask_again = starts + (before_fit and rank * TURN or turns_of(rank)) - now
  -- Those before it may leave without a word, and its own turn come sooner.
  if before_fit and rank <= NEAR then ask_again = math.min(ask_again, math.max(closed_until - now, 0) + TURN) end
  ask_again = math.min(math.max(ask_again, 1), silence_at(rank))
  if patience then queue(ask_again, queued) end
  if changed then save() end
  if not incumbent then return {ask_again} end
  return {ask_again, number(incumbent.token), incumbent.beat, incumbent.lasts, incumbent.about}
end

lapse(suspect_token, suspect_beat)
local mine = seat_of(holder)
if mine then
  beat(mine, ttl)
  if changed then save() end
  return number(mine.token) .. ' ' .. holder
end
local rank, queued = find_rank()
local before_fit = fits(mode, limit) and all_before_fit(rank)
local turn_came = rank == 0 or now >= math.max(turn_since, closed_until) + rank * TURN
if before_fit and now >= closed_until and turn_came then return grant(rank) end
return refuse(rank, queued, before_fit)
