-- What every script of the folder `fenced` begins with: refuse an older writer than the keys' owner, and storage that has lost the owner.
-- KEYS: epoch, ...   ARGV: epoch, ...   Returns {'FENCED', epoch} or {'LOST', 'the epoch', found}, or goes on.
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then
  if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
    return {'FENCED', epoch}
  end
  return {'LOST', 'the epoch', epoch or ''}
end
