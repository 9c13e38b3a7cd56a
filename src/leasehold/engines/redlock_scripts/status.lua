-- What this server keeps for a name: {now, lease, its milliseconds left, fence or highest, queue, places}.

local time = redis.call('TIME')
local highest = string.match(redis.call('GET', KEYS[5]) or '', '^%d+ (%d+)')
return {
  string.format('%.0f', time[1] * 1000000 + time[2]), redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]),
  redis.call('GET', KEYS[2]) or highest or '0', redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'),
  redis.call('HGETALL', KEYS[4]),
}
