-- The shortcut for an exclusive lease that others wait for: the head of the queue is told. It does what the long way
-- does, which also goes on from here when nobody was there to be told.

if text then
  local token, closed, sweep, holder, renewed, lasts =
    string.match(text, '^(%d+);%d+,(%d+),(%d+),none (%S+) (%d+) %d+ %d+ (%d+) ')
  if holder == ARGV[1] and renewed + lasts > now and tonumber(sweep) > now
    and tonumber(closed) <= now and tonumber(token) <= now then
    local first = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
    local place = first and redis.call('HGET', KEYS[6], first)
    local address = place and string.match(place, '^%a+ %d+ %d+ (%S+) ')
    local freed = address and string.format('%s;%.0f,%s,%s,none', token, now, closed, sweep)
    if freed and redis.pcall('SET', HEAD, freed, 'PX', RETENTION_MS).ok then
      local publish = string.byte(address, 4) == BRACE and 'SPUBLISH' or 'PUBLISH'
      if redis.call(publish, address, first) > 0 then return 1 end
    end
  end
end
