-- Change the addresses of a user, unless somebody has changed them meanwhile, or the user was erased since.
-- KEYS: addresses of the tenant; when the user was erased
-- ARGV: the user; what was read, '' for nothing; what replaces it, '' for nothing; an erasure since this time refuses it, '' for none
-- Returns {'OK'}, {'CHANGED'} or {'ERASED'}.
if ARGV[4] ~= '' and tonumber(redis.call('GET', KEYS[2]) or '-1') >= tonumber(ARGV[4]) then
  return {'ERASED'}
end
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
  return {'CHANGED'}
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return {'OK'}
