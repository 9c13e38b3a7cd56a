-- The shortcut for nearly every take: an idle name, and an exclusive lease. It does what the long way does.

local last = text and tonumber(text) or not text and 0
if last and ARGV[3] == 'exclusive' then
  local token = math.max(last + 1, now, ARGV[2] + 1)
  if token == now then
    local now_text = string.format('%.0f', now)
    redis.call('SET', HEAD, now_text .. ' ' .. ARGV[1] .. ' ' .. now_text .. ' ' .. ARGV[4] .. ' ' .. now_text ..
      ' 0 ' .. ARGV[6] .. ' ' .. ARGV[7], 'PX', ARGV[8])
    return now_text
  end
end
