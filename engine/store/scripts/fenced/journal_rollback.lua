-- Remove a group whose publishers get "unavailable", and keep a delayed copy of its append from applying.
-- KEYS: epoch, head, journal, then as accepted_ids.lua   ARGV: epoch, number, head before the group, ttl ms, then as accepted_ids.lua
local id = ARGV[1] .. '-' .. ARGV[2]
local head = redis.call('GET', KEYS[2]) or ''
if head ~= ARGV[3] and head ~= id and head ~= id .. 'u' then
  local last = string.match(head, '^' .. ARGV[1] .. '%-(%d+)u?$')
  if last and tonumber(last) > tonumber(ARGV[2]) then
    return {'OK'} -- a delayed copy: the group was rolled back and later groups were appended
  end
  return {'LOST', 'the last group', head}
end
ids_open(4, 5, tonumber(ARGV[4]))
if redis.call('XDEL', KEYS[3], id) == 1 then
  for one = 0, ids_count - 1 do
    ids_drop(one)
  end
end
redis.call('SET', KEYS[2], id .. 'u')
return {'OK'}
