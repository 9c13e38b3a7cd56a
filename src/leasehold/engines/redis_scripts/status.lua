-- All that is kept for the name, as it stands; nothing is written. Answers {now, head, seats, queue, untils, places}.

return {string.format('%.0f', now), text, redis.call('HGETALL', KEYS[2]), redis.call('ZRANGE', KEYS[4], 0, -1),
  redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES'), redis.call('HGETALL', KEYS[6])}
