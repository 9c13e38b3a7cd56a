-- One name's entry, as core/table.py means it.

local SEATS, ENDS, QUEUE, UNTILS, PLACES = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local LONGEST_LEASE = 172800000000  -- the longest TTL and the longest lock-delay
local SEATS_KEPT_MS = '259200000'
local MOST_AT_ONCE = 1000           -- arguments of one call

local token, turn_since, closed_until = 0, 0, 0
local sweep_at = 0     -- no place is given up before; 0: the queue is empty
local kind = 'none'    -- of the seats in SEATS: 'shared' or 'permit'
local taken = 0        -- how many seats there are in SEATS
local seat = nil       -- the exclusive seat
local changed = false  -- whether the head must be written

local function number(value)
  return string.format('%.0f', value)
end

local function seat_text(one)
  return string.format('%.0f %.0f %.0f %.0f %.0f %s',
    one.renewed, one.since, one.beat, one.lasts, one.delay, one.about)
end

local function seat_from(holder, its_token, its_text)
  local renewed, since, beat, lasts, delay, about =
    string.match(its_text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  return {holder = holder, token = tonumber(its_token), renewed = tonumber(renewed), lasts = tonumber(lasts),
    expires = renewed + lasts, since = tonumber(since), beat = tonumber(beat), delay = tonumber(delay), about = about}
end

local function load_head()
  if not text then return true end
  local token_text, middle, holder, rest = string.match(text, '^(%d+)(%S*) ?(%S*) ?(.*)$')
  if not token_text then return false end
  token = tonumber(token_text)
  if middle ~= '' then
    local turn, closed, sweep
    turn, closed, sweep, kind = string.match(middle, '^;(%d+),(%d+),(%d+),(%a+)$')
    if not kind then return false end
    turn_since, closed_until, sweep_at = tonumber(turn), tonumber(closed), tonumber(sweep)
  end
  if holder ~= '' then
    seat = seat_from(holder, token_text, rest)
    if middle == '' then turn_since = seat.since end
  end
  return true
end

local function save()
  local head = number(token)
  -- When nobody waits, nobody asks since when a turn could have been claimed.
  if closed_until > 0 or sweep_at > 0 or kind ~= 'none' or seat and turn_since ~= seat.since then
    head = string.format('%s;%.0f,%.0f,%.0f,%s', head, turn_since, closed_until, sweep_at, kind)
  end
  local ends = math.max(now, token, closed_until)
  if seat then
    head = head .. ' ' .. seat.holder .. ' ' .. seat_text(seat)
    ends = math.max(ends, seat.expires + seat.delay)
  elseif kind ~= 'none' then
    ends = math.max(ends, now + LONGEST_LEASE)
  end
  redis.call('SET', HEAD, head, 'PX', number((ends - now) / 1000 + RETENTION_MS))
end

local function seat_of(holder)
  if seat then return seat.holder == holder and seat or nil end
  if kind == 'none' then return nil end
  local found = redis.call('HGET', SEATS, holder)
  if not found then return nil end
  return seat_from(holder, string.match(found, '^(%d+) (.*)$'))
end

local function end_member(one)
  return string.format('%016.0f', one.token) .. one.holder
end

-- Write a seat that was granted or renewed; the head is kept as long as its seats.
local function put_seat(one)
  changed = true
  if one == seat then return end
  redis.call('HSET', SEATS, one.holder, number(one.token) .. ' ' .. seat_text(one))
  redis.call('ZADD', ENDS, number(one.expires), end_member(one))
  redis.call('PEXPIRE', SEATS, SEATS_KEPT_MS)
  redis.call('PEXPIRE', ENDS, SEATS_KEPT_MS)
end

local function remove_seat(one)
  changed = true
  if one == seat then
    seat = nil
    return
  end
  redis.call('HDEL', SEATS, one.holder)
  redis.call('ZREM', ENDS, end_member(one))
  taken = taken - 1
  if taken == 0 then kind = 'none' end
end

local function drop_seats()
  redis.call('DEL', SEATS, ENDS)
  kind, taken, changed = 'none', 0, true
end

local function forget_places(holders)
  for first = 1, #holders, MOST_AT_ONCE do
    local last = math.min(first + MOST_AT_ONCE - 1, #holders)
    redis.call('ZREM', QUEUE, unpack(holders, first, last))
    redis.call('ZREM', UNTILS, unpack(holders, first, last))
    redis.call('HDEL', PLACES, unpack(holders, first, last))
  end
end

local function close(one, ended)
  if one.delay > 0 then closed_until = math.max(closed_until, ended + one.delay) end
end

local function lose(one)
  local ended = math.min(one.expires, now)
  turn_since = math.max(turn_since, ended)
  close(one, ended)
  remove_seat(one)
end

local function all_seats()
  local seats, found = {}, redis.call('HGETALL', SEATS)
  for index = 1, #found, 2 do
    seats[#seats + 1] = seat_from(found[index], string.match(found[index + 1], '^(%d+) (.*)$'))
  end
  return seats
end

local function lapse_seats(suspect_token, suspect_beat)
  for _, one in ipairs(suspect_token and all_seats() or {}) do
    if one.token == suspect_token and one.beat == suspect_beat then lose(one) end
  end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', ENDS, '-inf', number(now))) do
    lose(seat_of(string.sub(member, 17)))
  end
end

local function lapse_places()
  forget_places(redis.call('ZRANGEBYSCORE', UNTILS, '-inf', number(now)))
  sweep_at = tonumber(redis.call('ZRANGE', UNTILS, 0, 0, 'WITHSCORES')[2] or 0)
  changed = true
end

-- Drop leases that ran out (or are proved to have by a watcher's own clock) and waiters who gave up.
local function lapse(suspect_token, suspect_beat)
  if turn_since > now then
    turn_since = now
    changed = true
  end
  if seat and (seat.expires <= now or seat.token == suspect_token and seat.beat == suspect_beat) then lose(seat) end
  if kind ~= 'none' then
    taken = redis.call('ZCARD', ENDS)
    if taken > 0 and taken == redis.call('HLEN', SEATS) then
      lapse_seats(suspect_token, suspect_beat)
    else  -- the server evicted one of the two: these leases are gone
      drop_seats()
    end
  end
  if sweep_at ~= 0 and sweep_at <= now then lapse_places() end
end

-- A server without memory refuses a script whose first write needs some. Renewing and giving back must not fail for
-- that, so they begin with a write that needs none.
local function insist()
  redis.call('PEXPIRE', HEAD, SEATS_KEPT_MS)
end

-- Start the lease anew. It never gets shorter in real time, even when the clock was set back meanwhile.
local function beat(one, ttl)
  one.renewed, one.lasts, one.beat = now, math.max(one.lasts, ttl), one.beat + 1
  one.expires = now + one.lasts
  put_seat(one)
end

-- Whether a lease of this kind can stand beside those that are held.
local function fits(mode, limit)
  if seat then return false end
  if kind == 'none' then return true end
  return mode == kind and (mode == 'shared' or taken < limit)
end

local function place_of(holder)
  local found = redis.call('HGET', PLACES, holder)
  if not found then return nil end
  local mode, limit, since, floor, address, terms = string.match(found, '^(%a+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  return {mode = mode, limit = tonumber(limit), since = since, floor = floor, address = address, terms = terms}
end

local function mint(floor)
  token = math.max(token + 1, now, floor + 1)
  changed = true
  return token <= HIGHEST_TOKEN
end

-- When the first of the leases ends, and the name is open.
local function first_end()
  local ends = seat and seat.expires or 0
  if kind ~= 'none' then ends = tonumber(redis.call('ZRANGE', ENDS, 0, 0, 'WITHSCORES')[2]) end
  return math.max(ends, closed_until)
end

-- Whether the head of the queue could be served, or would not look by itself when it can be.
local function needs_waking(head)
  local place = place_of(head)
  if not place or now >= closed_until and fits(place.mode, place.limit) then return place, true end
  return place, tonumber(redis.call('ZSCORE', UNTILS, head) or 0) > first_end() + LATENESS + SLACK
end

-- Wake the head of the queue if it needs that. One whose wake-up finds nobody is gone: the next one, then.
local function wake_next()
  if sweep_at == 0 then return end
  local head = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  while head do
    local place, needs_it = needs_waking(head)
    if not needs_it then return end
    if place and redis.call(publishing_to(place.address), place.address, head) > 0 then return end
    forget_places({head})
    head = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  end
  sweep_at = 0
  changed = true
end

if not load_head() then return redis.error_reply('LEASEHOLD the key ' .. HEAD .. ' holds something else') end
