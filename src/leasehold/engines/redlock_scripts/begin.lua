-- How every script of a quorum's server begins; what each one means stands in core/quorum_server.py.
--
-- KEYS  1 lease   string: <counter> <holder> <round> <since> <about>; the counter 0: kept for one who waited
--       2 fence   string: the highest counter of this name
--       3 queue   sorted set: holder, by since when it waits (as it says, so that all servers agree)
--       4 places  hash: holder -> <until> <channel> <about>
--       5 marker  string: <ready> <highest> <base> <run> <durable>
-- The last two arguments come from the connection: "<run> <durable>" (0 or 1), and "<quarantine> <channel>".
-- Times are microseconds. Numbers are written with %.0f: Lua's own form keeps 14 digits only. But to write a number takes
-- as long as to write a key, so text that came in stays text wherever it goes out again; and the time is asked for only
-- where it matters (`needs_time` comes before all this).
-- Functions are few: to make them anew for each request would take longer than what they do.

local LEASE, FENCE, QUEUE, PLACES, MARKER = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local KEPT_MS, FENCE_KEPT_MS, QUEUE_KEPT_MS = '100', '86400000', '120000'

local count = #ARGV
local run = ARGV[count - 1]
local ready, highest, base, its_run =
  string.match(redis.call('GET', MARKER) or '', '^(%d+) (%d+) (%d+) (%S+ [01])$')
local time, now

if ready ~= '0' or its_run ~= run or needs_time then
  time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]

  -- A server that may have lost something is kept out from now on: leases granted before must have ended when it comes
  -- back, and its counters must start above all that it ever granted.
  if its_run ~= run then
    local id, durable = string.match(run, '^(%S+) ([01])$')
    local its_id, its_durable = string.match(its_run or '', '^(%S+) ([01])$')
    if not ready or its_id ~= id and not (durable == '1' and its_durable == '1') then
      ready = string.format('%.0f', now + tonumber(string.match(ARGV[count], '^%d+')))
      if not highest or tonumber(ready) > tonumber(highest) then highest = ready end
      base, its_run = highest, run
      redis.call('SET', MARKER, ready .. ' ' .. highest .. ' ' .. base .. ' ' .. its_run)
    elseif its_id ~= id or durable == '0' then
      its_run = run
      redis.call('SET', MARKER, ready .. ' ' .. highest .. ' ' .. base .. ' ' .. its_run)
    end
  end
  if now < tonumber(ready) then return {'barred', string.format('%.0f', tonumber(ready) - now)} end
end

local lease = redis.call('GET', LEASE)
local counter, holder_there, round_there, since_there, about_there
if lease then
  counter, holder_there, round_there, since_there, about_there = string.match(lease, '^(%d+) (%S+) (%d+) (%d+) (.*)$')
  if not counter then return redis.error_reply('LEASEHOLD the key ' .. LEASE .. ' holds something else') end
  counter, round_there = tonumber(counter), tonumber(round_there)
end
