-- How whoever waits at an address is told.

local BRACE = 123  -- the fourth character of an address in a cluster, lh:{tag}:wake:..., a channel of the name's slot

local function publishing_to(address)
  return string.byte(address, 4) == BRACE and 'SPUBLISH' or 'PUBLISH'
end
