-- The shortcut for nearly every take: an idle name, and an exclusive lease. It does what the long way does, without
-- turning text into numbers: of two numbers of the same length the greater one is also the greater text.

local above_last = not text or #text == #now_text and text < now_text
local above_floor = #ARGV[2] <= #now_text and ARGV[2] < now_text
if above_last and above_floor and ARGV[3] == 'exclusive' then
  redis.call('SET', HEAD, now_text .. ' ' .. ARGV[1] .. ' ' .. now_text .. ' ' .. now_text .. ' 0 ' .. ARGV[5],
    'PX', ARGV[4])
  return now_text .. ' ' .. ARGV[1]
end
