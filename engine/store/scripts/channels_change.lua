-- Change the addresses of a user, unless somebody has changed them meanwhile.
-- KEYS: those of the tenant   ARGV: the user; what was read, '' for nothing; what replaces it, '' for nothing
-- Returns {'OK'} or {'CHANGED'}.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
  return {'CHANGED'}
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return {'OK'}
