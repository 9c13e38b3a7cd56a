-- Lease the name to the holder under a counter above all earlier ones here.
-- Answers '<counter> <holder> <round>', or {'occupied', counter, left, token, about, rank}.

local AHEAD = 1000000
local HIGHEST_TOKEN = 9007199254740991  -- beyond it, numbers here would no longer differ by one
local LONGEST_PLACE = 90000000
local holder, round, patience = ARGV[1], ARGV[2], ARGV[6]
local counter_of_name = math.max(tonumber(redis.call('GET', FENCE) or highest), base)

if lease then
  local is_mine = holder_there == holder
  if is_mine and counter > 0 and round_there == tonumber(round) then  -- the same request once more
    return string.format('%.0f %s %s', counter, holder, round)
  end
  is_mine = is_mine and (counter == 0 or round_there < tonumber(round))
  if not is_mine and ARGV[8] ~= '1' then
    local rank = 0
    if patience ~= '' then
      local place_until = now + math.min(tonumber(patience), LONGEST_PLACE)
      redis.call('ZADD', QUEUE, 'NX', ARGV[7], holder)
      redis.call('HSET', PLACES, holder, string.format('%.0f %s %s', place_until, ARGV[count], ARGV[5]))
      redis.call('PEXPIRE', QUEUE, QUEUE_KEPT_MS)
      redis.call('PEXPIRE', PLACES, QUEUE_KEPT_MS)
      rank = redis.call('ZRANK', QUEUE, holder)
    end
    local left = math.max(redis.call('PTTL', LEASE), 0)
    return {'occupied', string.format('%.0f', counter_of_name), left, string.format('%.0f', counter), about_there, rank}
  end
end

local granted = math.max(counter_of_name + 1, math.min(tonumber(ARGV[4]), now + AHEAD))
if granted > HIGHEST_TOKEN then return redis.error_reply('LEASEHOLD no token is left for this name') end
local text = string.format('%.0f', granted)
redis.call('SET', FENCE, text, 'PX', FENCE_KEPT_MS)
if granted > highest then
  redis.call('SET', MARKER, string.format(MARKER_FORM, ready, granted, base, its_run, its_durable))
end
redis.call('SET', LEASE, string.format('%s %s %s %.0f %s', text, holder, round, now, ARGV[5]), 'PX', ARGV[3])
if patience ~= '' and redis.call('ZREM', QUEUE, holder) == 1 then redis.call('HDEL', PLACES, holder) end
return text .. ' ' .. holder .. ' ' .. round
