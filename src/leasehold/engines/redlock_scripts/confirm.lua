-- Move up to the token and let the lease last for the TTL: a second phase, or a renewal. Answers the token, or 0.

local holder, token, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not lease or holder_there ~= holder or counter == 0 or counter > token then return 0 end
local lasts_ms = math.max(ttl_ms, redis.call('PTTL', LEASE))
-- A server without memory refuses a script whose first write needs some; a renewal must not fail for that.
redis.call('PEXPIRE', LEASE, number(lasts_ms))
if token > counter_of_name() then count(token) end
redis.call('SET', LEASE, string.format('%.0f %s %.0f %s %s', token, holder, round_there, since_there, about_there),
  'PX', number(lasts_ms))
return ARGV[2]
