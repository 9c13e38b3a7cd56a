-- Lease the name to the holder under a counter above all earlier ones here.
-- Answers '<counter> <holder> <round>', or {'occupied', counter, left, token, about, rank}.

local holder, round, ttl_ms, floor, about = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local patience, since, force = tonumber(ARGV[6]), ARGV[7], ARGV[8] == '1'

local function refuse()
  local rank = 0
  if patience then
    redis.call('ZADD', QUEUE, 'NX', since, holder)
    redis.call('HSET', PLACES, holder,
      string.format('%.0f %s %s', now + math.min(patience, LONGEST_PLACE), channel, about))
    redis.call('PEXPIRE', QUEUE, QUEUE_KEPT_MS)
    redis.call('PEXPIRE', PLACES, QUEUE_KEPT_MS)
    rank = redis.call('ZRANK', QUEUE, holder)
  end
  local ends_in = math.max(redis.call('PTTL', LEASE), 0)
  return {'occupied', number(counter_of_name()), ends_in, number(counter), about_there, rank}
end

local function grant()
  local next_counter = math.max(counter_of_name() + 1, math.min(floor, now + AHEAD))
  if next_counter > HIGHEST_TOKEN then return redis.error_reply('LEASEHOLD no token is left for this name') end
  count(next_counter)
  redis.call('SET', LEASE, string.format('%.0f %s %.0f %.0f %s', next_counter, holder, round, now, about), 'PX', ttl_ms)
  if patience then
    redis.call('ZREM', QUEUE, holder)
    redis.call('HDEL', PLACES, holder)
  end
  return string.format('%.0f %s %.0f', next_counter, holder, round)
end

if not lease then return grant() end
local is_mine = holder_there == holder
if is_mine and counter > 0 and round_there == round then  -- the same request once more
  return string.format('%.0f %s %.0f', counter, holder, round)
end
is_mine = is_mine and (counter == 0 or round_there < round)
if is_mine or force then return grant() end
return refuse()
