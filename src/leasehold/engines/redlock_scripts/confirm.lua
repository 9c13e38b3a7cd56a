-- Move up to the token and let the lease last for the TTL: a second phase, or a renewal. Answers the token, or 0.

local holder, token = ARGV[1], tonumber(ARGV[2])
if not lease or holder_there ~= holder or counter == 0 or counter > token then return 0 end
local lasts_ms = string.format('%.0f', math.max(tonumber(ARGV[3]), redis.call('PTTL', LEASE)))
-- A server without memory refuses a script whose first write needs some; a renewal must not fail for that.
redis.call('PEXPIRE', LEASE, lasts_ms)
if token > math.max(tonumber(redis.call('GET', FENCE) or highest), tonumber(base)) then
  redis.call('SET', FENCE, ARGV[2], 'PX', FENCE_KEPT_MS)
  if token > tonumber(highest) then
    redis.call('SET', MARKER, ready .. ' ' .. ARGV[2] .. ' ' .. base .. ' ' .. its_run)
  end
end
if token > counter then
  redis.call('SET', LEASE, string.format('%s %s %.0f %s %s', ARGV[2], holder, round_there, since_there, about_there),
    'PX', lasts_ms)
end
return ARGV[2]
