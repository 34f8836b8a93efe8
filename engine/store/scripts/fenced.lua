-- Put before every script of the folder `fenced`: reject a writer older than the owner of the keys, and storage that has lost the owner.
-- KEYS: epoch, ...   ARGV: epoch, ...   Returns {'FENCED', epoch} or {'LOST', 'the epoch', found}, or continues.
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then
  if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
    return {'FENCED', epoch}
  end
  return {'LOST', 'the epoch', epoch or ''}
end
