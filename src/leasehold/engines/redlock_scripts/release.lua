-- Give back what the holder got in rounds up to this one; leaving, it waits no longer, and the next one has its turn.
-- Answers 1 when it held the lease, else 0.

local holder, leave = ARGV[1], ARGV[3] == '1'
local is_mine = lease and holder_there == holder
local held = is_mine and counter > 0  -- else it is kept for one who gives up
if not is_mine or held and round_there > tonumber(ARGV[2]) or not held and not leave then
  if leave and redis.call('ZREM', QUEUE, holder) == 1 then redis.call('HDEL', PLACES, holder) end
  return 0
end
redis.call('DEL', LEASE)

-- Keep the name for the one who waited longest and still listens, and wake it; or for nobody.
local popped = leave and redis.call('ZPOPMIN', QUEUE) or {}
if popped[1] then
  if not now then
    time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  if popped[1] ~= holder then redis.call('ZREM', QUEUE, holder) end  -- a late request may have queued it
  redis.call('HDEL', PLACES, holder)
end
while popped[1] do
  local place = redis.call('HGET', PLACES, popped[1])
  redis.call('HDEL', PLACES, popped[1])
  local place_until, its_channel = string.match(place or '', '^(%d+) (%S+)')
  if place_until and tonumber(place_until) > now and redis.call('PUBLISH', its_channel, popped[1]) > 0 then
    redis.call('SET', LEASE, string.format('0 %s 0 %.0f ', popped[1], now), 'PX', KEPT_MS)
    break
  end
  popped = redis.call('ZPOPMIN', QUEUE)
end
return held and 1 or 0
