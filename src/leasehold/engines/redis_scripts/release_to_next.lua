-- The shortcut for an exclusive lease that others wait for: the head of the queue is handed the name when it has asked
-- for it only now, or else told that it is free. It does what the long way does, which hands nothing over, and which goes
-- on from here when nobody was there to be told.

local PROMPT = 250000

-- Grant the name to the head of the queue; false when it has to come for it, or is not there.
local function hand_over(token, closed, sweep, first, second, place)
  local since, floor, address, terms, lasts, delay =
    string.match(place, '^exclusive %d+ (%d+) (%d+) (%S+) ((%d+) (%d+) .*)$')
  if not since or now < tonumber(since) or now <= tonumber(token) or now <= tonumber(floor) then return false end
  lasts = tonumber(lasts)
  if now >= since + math.min(PROMPT, math.floor(lasts / 8)) then return false end
  local looks_by = now + lasts + LATENESS + SLACK
  if second and tonumber(redis.call('ZSCORE', KEYS[5], second) or 0) > looks_by then return false end
  local head = now_text .. ';' .. now_text .. ',' .. closed .. ',' .. sweep .. ',none ' .. first .. ' ' .. now_text .. ' '
    .. now_text .. ' 0 ' .. terms
  local kept_ms = string.format('%.0f', (lasts + delay) / 1000 + RETENTION_MS)
  if not redis.pcall('SET', HEAD, head, 'PX', kept_ms).ok then return false end
  if redis.call(publishing_to(address), address, first .. ' ' .. now_text) == 0 then return false end
  redis.call('ZREM', KEYS[4], first)
  redis.call('ZREM', KEYS[5], first)
  redis.call('HDEL', KEYS[6], first)
  return true
end

if text then
  local token, closed, sweep, holder, renewed, lasts =
    string.match(text, '^(%d+);%d+,(%d+),(%d+),none (%S+) (%d+) %d+ %d+ (%d+) ')
  if holder == ARGV[1] and renewed + lasts > now and tonumber(sweep) > now
    and tonumber(closed) <= now and tonumber(token) <= now then
    local first, second = unpack(redis.call('ZRANGE', KEYS[4], 0, 1))
    local place = first and redis.call('HGET', KEYS[6], first)
    if place and hand_over(token, closed, sweep, first, second, place) then return 1 end
    local address = place and string.match(place, '^%a+ %d+ %d+ %d+ (%S+) ')
    local freed = address and string.format('%s;%.0f,%s,%s,none', token, now, closed, sweep)
    if freed and redis.pcall('SET', HEAD, freed, 'PX', RETENTION_MS).ok then
      if redis.call(publishing_to(address), address, first) > 0 then return 1 end
    end
  end
end
