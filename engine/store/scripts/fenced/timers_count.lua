-- Count for their tenants the timers of a partition that an older version has stored: users, in any number of calls, then the bytes of all
-- tenants, in the last one. Idempotent; no turn may be applied before the last.
-- KEYS: epoch, unpaged, counted, of all tenants: users, bytes
-- ARGV: epoch, twice the number of users, users: (mailbox key, key of the user's page)..., and without users: (tenant, bytes)...
-- Returns {'OK'}.
local _, unpaged_key, counted_key, users_key, bytes_key = unpack(KEYS)
if redis.call('EXISTS', counted_key) == 1 then
  return {'OK'}
end
redis.call('DEL', counted_key) -- Redis rejects a script for lack of memory at its first write only, and never rejects this one
local more_users, more_bytes = {}, {}
for at = 3, 2 + ARGV[2], 2 do
  local key, page_key = ARGV[at], ARGV[at + 1]
  if redis.call('HEXISTS', page_key, key) == 0 then
    local tenant = tenant_of(key)
    more_users[tenant] = (more_users[tenant] or 0) + redis.call('SADD', unpaged_key, key)
  end
end
add_to(users_key, more_users)
if ARGV[2] == '0' then
  for at = 3, #ARGV, 2 do
    more_bytes[ARGV[at]] = tonumber(ARGV[at + 1])
  end
  add_to(bytes_key, more_bytes)
  redis.call('SET', counted_key, '')
end
return {'OK'}
