-- Put before every script of the folder `fenced`: reject a writer older than the owner of the keys, and storage that has lost the owner;
-- and what the scripts share that count for tenants.
-- KEYS: epoch, ...   ARGV: epoch, ...   Returns {'FENCED', epoch} or {'LOST', 'the epoch', found}, or continues.

-- The reply to who may not write what this epoch protects; nil for its owner, whose epoch is the first argument unless it is given.
local function rejection(epoch_key, own)
  local epoch = redis.call('GET', epoch_key)
  own = own or ARGV[1]
  if epoch ~= own then
    if epoch and tonumber(epoch) > tonumber(own) then
      return {'FENCED', epoch}
    end
    return {'LOST', 'the epoch', epoch or ''}
  end
end

local rejected = rejection(KEYS[1])
if rejected then
  return rejected
end

-- The tenant of a mailbox key.
local function tenant_of(key)
  return string.match(key, '^[^:]*')
end

-- Add to a figure of tenants what each has more; a tenant that has none is not in it.
local function add_to(figure_key, more)
  for tenant, by in pairs(more) do
    if by ~= 0 and tonumber(redis.call('ZINCRBY', figure_key, string.format('%.0f', by), tenant)) <= 0 then
      redis.call('ZREM', figure_key, tenant)
    end
  end
end
