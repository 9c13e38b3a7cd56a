-- How every script of a quorum's server begins; what each one means stands in core/quorum_server.py.
--
-- KEYS  1 lease   string: <counter> <holder> <round> <since> <about>; the counter 0: kept for one who waited
--       2 fence   string: the highest counter of this name
--       3 queue   sorted set: holder, by since when it waits (as it says, so that all servers agree)
--       4 places  hash: holder -> <until> <channel> <about>
--       5 marker  string: <ready> <highest> <base> <run> <durable>
-- The last four arguments come from the connection: run, durable (0 or 1), quarantine, channel.
-- Times are microseconds. Numbers are written with %.0f: Lua's own form keeps 14 digits only.

local LEASE, FENCE, QUEUE, PLACES, MARKER = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local AHEAD, KEPT_MS, LONGEST_PLACE = 1000000, '100', 90000000
local FENCE_KEPT_MS, QUEUE_KEPT_MS = '86400000', '120000'
local HIGHEST_TOKEN = 9007199254740991  -- beyond it, numbers here would no longer differ by one

local run, durable, quarantine, channel = ARGV[#ARGV - 3], ARGV[#ARGV - 2], tonumber(ARGV[#ARGV - 1]), ARGV[#ARGV]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ready, highest, base, its_run, its_durable =
  string.match(redis.call('GET', MARKER) or '', '^(%d+) (%d+) (%d+) (%S+) ([01])$')
ready, highest, base = tonumber(ready), tonumber(highest or 0), tonumber(base or 0)

local function number(value)
  return string.format('%.0f', value)
end

local function save_marker()
  redis.call('SET', MARKER, string.format('%.0f %.0f %.0f %s %s', ready, highest, base, its_run, its_durable))
end

-- For how long this server is kept out. One that may have lost something is, from now on: leases granted before must
-- have ended when it comes back, and its counters must start above all that it ever granted.
local function barred()
  local restarted = its_run ~= run
  if not ready or restarted and not (durable == '1' and its_durable == '1') then
    ready = now + quarantine
    highest = math.max(ready, highest)
    base, its_run, its_durable = highest, run, durable
    save_marker()
    return quarantine
  end
  if restarted or its_durable == '1' and durable == '0' then
    its_run, its_durable = run, durable
    save_marker()
  end
  return math.max(ready - now, 0)
end

local function counter_of_name()
  return math.max(tonumber(redis.call('GET', FENCE) or highest), base)
end

local function count(counter)
  redis.call('SET', FENCE, number(counter), 'PX', FENCE_KEPT_MS)
  if counter > highest then
    highest = counter
    save_marker()
  end
end

local lease = redis.call('GET', LEASE)
local counter, holder_there, round_there, since_there, about_there
if lease then
  counter, holder_there, round_there, since_there, about_there = string.match(lease, '^(%d+) (%S+) (%d+) (%d+) (.*)$')
  if not counter then return redis.error_reply('LEASEHOLD the key ' .. LEASE .. ' holds something else') end
  counter, round_there = tonumber(counter), tonumber(round_there)
end

-- Keep the name for the one who waited longest and still listens, and wake it; or for nobody.
local function pass_on()
  local popped = redis.call('ZPOPMIN', QUEUE)
  while popped[1] do
    local place = redis.call('HGET', PLACES, popped[1])
    redis.call('HDEL', PLACES, popped[1])
    local place_until, its_channel = string.match(place or '', '^(%d+) (%S+)')
    if place_until and tonumber(place_until) > now and redis.call('PUBLISH', its_channel, popped[1]) > 0 then
      redis.call('SET', LEASE, string.format('0 %s 0 %.0f ', popped[1], now), 'PX', KEPT_MS)
      return
    end
    popped = redis.call('ZPOPMIN', QUEUE)
  end
  redis.call('DEL', LEASE)
end

local left = barred()
if left > 0 then return {'barred', number(left)} end
