-- Give the name back and leave the queue. Nobody else's lease is touched. Answers 1, or 0 when it was not held.

local holder = ARGV[1]

lapse()
local mine = seat_of(holder)
local was_head = sweep_at ~= 0 and not mine and redis.call('ZRANK', QUEUE, holder) == 0
if mine then
  insist()
  remove_seat(mine)
elseif sweep_at ~= 0 then
  forget_places({holder})
end
if mine or was_head then
  turn_since = now
  changed = true
  wake_next()
end
if changed then save() end
return mine and 1 or 0
