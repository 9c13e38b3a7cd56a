-- Prolong a lease that is still held; never shorten it, never revive it. Answers its token, or 0 when it is not held.

local holder, its_token, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

lapse()
local mine = seat_of(holder)
local held = mine ~= nil and mine.token == its_token
if held then
  insist()
  beat(mine, ttl)
end
if changed then save() end
return held and ARGV[2] or 0
