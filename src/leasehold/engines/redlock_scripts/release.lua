-- Give back what the holder got in rounds up to this one; leaving, it waits no longer, and the next one has its turn.
-- Answers 1 when it held the lease, else 0.

local holder, round, leave = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
if leave and redis.call('ZREM', QUEUE, holder) == 1 then redis.call('HDEL', PLACES, holder) end
if not lease or holder_there ~= holder then return 0 end
if counter == 0 then  -- kept for one who gives up
  if leave then pass_on() end
  return 0
end
if round_there > round then return 0 end
redis.call('PEXPIRE', LEASE, KEPT_MS)  -- as in confirm: the first write must need no memory
if leave then pass_on() else redis.call('DEL', LEASE) end
return 1
