-- A full checkpoint covers the journal through this group.
-- KEYS: epoch, journal   ARGV: epoch, first number to keep
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then
  return {'FENCED', epoch or ''}
end
return {'OK', redis.call('XTRIM', KEYS[2], 'MINID', ARGV[1] .. '-' .. ARGV[2])}
