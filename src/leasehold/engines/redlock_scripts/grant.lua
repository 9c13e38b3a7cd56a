-- Lease the name to the holder under a counter above all earlier ones here.
-- The sixth argument is empty, or '<patience> <since>' of one who would wait, or 'force'.
-- Answers '<counter> <holder> <round>', or {'occupied', counter, left, token, about, rank}.

local AHEAD = 1000000
local HIGHEST_TOKEN = 9007199254740991  -- beyond it, numbers here would no longer differ by one
local LONGEST_PLACE = 90000000
local holder, round, place = ARGV[1], ARGV[2], ARGV[6]
local fence = redis.call('GET', FENCE)
local counter_of_name = math.max(tonumber(fence or highest), tonumber(base))

if lease then
  local is_mine = holder_there == holder
  if is_mine and counter > 0 and round_there == tonumber(round) then  -- the same request once more
    return string.format('%.0f %s %s', counter, holder, round)
  end
  is_mine = is_mine and (counter == 0 or round_there < tonumber(round))
  if not is_mine and place ~= 'force' then
    local rank = 0
    if place ~= '' then
      local patience, since = string.match(place, '^(%d+) (%d+)$')
      local channel = string.match(ARGV[count], ' (.*)$')
      local place_until = now + math.min(tonumber(patience), LONGEST_PLACE)
      redis.call('ZADD', QUEUE, 'NX', since, holder)
      redis.call('HSET', PLACES, holder, string.format('%.0f %s %s', place_until, channel, ARGV[5]))
      redis.call('PEXPIRE', QUEUE, QUEUE_KEPT_MS)
      redis.call('PEXPIRE', PLACES, QUEUE_KEPT_MS)
      rank = redis.call('ZRANK', QUEUE, holder)
    end
    local left = math.max(redis.call('PTTL', LEASE), 0)
    return {'occupied', string.format('%.0f', counter_of_name), left, string.format('%.0f', counter), about_there, rank}
  end
end

-- As high as is asked for, but not far ahead of the clock here; and above what was.
local asked = tonumber(ARGV[4])
local granted = math.max(counter_of_name + 1, math.min(asked, now + AHEAD))
if granted > HIGHEST_TOKEN then return redis.error_reply('LEASEHOLD no token is left for this name') end
local text = granted == asked and ARGV[4] or string.format('%.0f', granted)
if fence then  -- one that ends while it is in use counts as the highest, which is not lower
  redis.call('SET', FENCE, text, 'KEEPTTL')
else
  redis.call('SET', FENCE, text, 'PX', FENCE_KEPT_MS)
end
if granted > tonumber(highest) then redis.call('SET', MARKER, ready .. ' ' .. text .. ' ' .. base .. ' ' .. its_run) end
local since = time[1] .. string.sub('00000' .. time[2], -6)
redis.call('SET', LEASE, text .. ' ' .. holder .. ' ' .. round .. ' ' .. since .. ' ' .. ARGV[5], 'PX', ARGV[3])
if place ~= '' and redis.call('ZREM', QUEUE, holder) == 1 then redis.call('HDEL', PLACES, holder) end
return text .. ' ' .. holder .. ' ' .. round
