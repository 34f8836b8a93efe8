-- Add one batch of counter signals, unless it was added before.
-- KEYS: the writer's last number, names of each tenant, then a hash per tenant
-- ARGV: number of the batch, ttl of that number in s, names of a tenant at most (0: any number), then the tenant of each hash, then for
-- each sum: index of the hash (from 1), the signal's name, amount
-- Returns {'OK', sums dropped because their name would be one too many}, or {'KNOWN'}.
-- The number is stored first: Redis rejects a script for lack of memory at its first write only, and nothing after it may stop the script,
-- or the sums before that place would be added again with every repeat. So a sum that would overflow stays at the largest number.
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if last >= tonumber(ARGV[1]) then
  return {'KNOWN'}
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
local names_max, tenants, dropped, names = tonumber(ARGV[3]), #KEYS - 2, 0, {}
for i = 1, tenants do
  names[i] = redis.call('HLEN', KEYS[2 + i])
end
for i = 4 + tenants, #ARGV, 3 do
  local tenant = tonumber(ARGV[i])
  local hash = KEYS[2 + tenant]
  if names_max > 0 and names[tenant] >= names_max and redis.call('HEXISTS', hash, ARGV[i + 1]) == 0 then
    dropped = dropped + 1
  else
    local added = redis.pcall('HINCRBY', hash, ARGV[i + 1], ARGV[i + 2])
    if type(added) == 'table' then
      redis.call('HSET', hash, ARGV[i + 1], string.sub(ARGV[i + 2], 1, 1) == '-' and '-9223372036854775808' or '9223372036854775807')
    end
    if names_max > 0 then
      names[tenant] = redis.call('HLEN', hash)
    end
  end
end
for i = 1, tenants do
  redis.call('ZADD', KEYS[2], redis.call('HLEN', KEYS[2 + i]), ARGV[3 + i])
end
return {'OK', dropped}
