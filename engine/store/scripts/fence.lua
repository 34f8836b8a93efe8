-- Take over: raise the epoch of every key to ARGV[1], or change nothing when any of them is newer.
for i = 1, #KEYS do
  local epoch = redis.call('GET', KEYS[i])
  if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
    return {'FENCED', epoch}
  end
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], ARGV[1])
end
return {'OK'}
