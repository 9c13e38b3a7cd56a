-- Two shortcuts for an exclusive lease on a name that others want, too: its first waiter comes for it when it is free,
-- and one who comes while it is held joins the queue. They do what the long way does.

local head_token, turn, closed, sweep, held = string.match(text or '', '^(%d+);(%d+),(%d+),(%d+),none ?(.*)$')
if sweep and ARGV[3] == 'exclusive' and tonumber(sweep) > now and tonumber(turn) <= now then
  local holder = ARGV[1]
  if held == '' then
    local first, second = unpack(redis.call('ZRANGE', KEYS[4], 0, 1))
    -- One who must be told that it is the first now is left to the long way.
    local ends = now + string.match(ARGV[5], '^%d+')
    local looks = not second or tonumber(redis.call('ZSCORE', KEYS[5], second) or 0) <= ends + LATENESS + SLACK
    if first == holder and looks
      and tonumber(closed) <= now and tonumber(head_token) < now and tonumber(ARGV[2]) < now then
      redis.call('SET', HEAD, now_text .. ';' .. now_text .. ',' .. closed .. ',' .. sweep .. ',none ' .. holder .. ' '
        .. now_text .. ' ' .. now_text .. ' 0 ' .. ARGV[5], 'PX', ARGV[4])
      redis.call('ZREM', KEYS[4], holder)
      redis.call('ZREM', KEYS[5], holder)
      redis.call('HDEL', KEYS[6], holder)
      return now_text .. ' ' .. holder
    end
  elseif ARGV[7] and ARGV[7] ~= '' and ARGV[8] == '' then
    local incumbent, renewed, beat, lasts, about = string.match(held, '^(%S+) (%d+) %d+ (%d+) (%d+) %d+ (.*)$')
    local expires = renewed + lasts
    local place = 'exclusive ' .. ARGV[6] .. ' ' .. now_text .. ' ' .. ARGV[2] .. ' ' .. ARGV[10] .. ' ' .. ARGV[5]
    -- Who is in the queue already has a place, and is left to the long way.
    if incumbent ~= holder and expires > now and redis.call('HSETNX', KEYS[6], holder, place) == 1 then
      local rank = redis.call('ZCARD', KEYS[4])
      local ask_again = math.min(math.max(expires, tonumber(closed)), now + lasts) + turns_of(rank) - now
      ask_again = math.min(math.max(ask_again, 1), silence_at(rank))
      local gives_up = line_up(holder, false, ask_again, tonumber(ARGV[7]))
      if gives_up < tonumber(sweep) then
        redis.call('SET', HEAD, string.format('%s;%s,%s,%.0f,none %s', head_token, turn, closed, gives_up, held),
          'KEEPTTL')
      end
      return {ask_again, head_token, tonumber(beat), tonumber(lasts), about}
    end
  end
end
