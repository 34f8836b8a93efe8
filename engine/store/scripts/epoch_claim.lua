-- Make an epoch that of a name, unless the name has a newer one: a late copy of an older claim has no effect.
-- KEYS: meta   ARGV: field of the name, epoch   Returns {'OK', epoch of the name now}.
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held and tonumber(held) >= tonumber(ARGV[2]) then
    return {'OK', held}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {'OK', ARGV[2]}
