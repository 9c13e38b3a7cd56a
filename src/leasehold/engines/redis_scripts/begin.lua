-- How every script begins.
--
-- KEYS  1 head    string: what is below
--       2 seats   hash: holder -> seat, of shared leases or permits
--       3 ends    sorted set: token and holder, by when that seat ends
--       4 queue   sorted set: holder, in the order of arrival
--       5 untils  sorted set: holder, by when its place is given up
--       6 places  hash: holder -> place
--
-- The head is   <token>[;<turn_since>,<closed_until>,<sweep_at>,<kind>][ <holder> <seat>]
--   seat:       <renewed> <since> <beat> <lasts> <delay> <about>         (in the hash its token comes first)
--   place:      <mode> <limit> <since> <floor> <address> <lasts> <delay> <about>
-- so an idle name is its token alone, and an exclusive lease that nobody waits for has no middle part.
--
-- The head outlives its leases by RETENTION_MS, for its token. Leases end by the times written in it, not by the
-- server's expiry: what a lost lease leaves behind (its token, its lock-delay) must still be there.
-- Times are microseconds. Numbers are written with %.0f: Lua's own form keeps 14 digits only.

local HEAD = KEYS[1]
local RETENTION_MS = '86400000'
local LATENESS, SLACK = 5000000, 250000
local HIGHEST_TOKEN = 9007199254740991  -- beyond it, numbers here would no longer differ by one

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = time[1] .. (#time[2] == 6 and time[2] or string.sub('00000' .. time[2], -6))
local text = redis.call('GET', HEAD)
