-- End every lease; the token minted here is above all of theirs. Answers that token.

lapse()
if not mint(tonumber(ARGV[1])) then return redis.error_reply('LEASEHOLD no token is left for this name') end
if seat then
  close(seat, now)
  seat = nil
end
if kind ~= 'none' then
  for _, one in ipairs(all_seats()) do close(one, now) end
  drop_seats()
end
turn_since = now
wake_next()
save()
return number(token)
