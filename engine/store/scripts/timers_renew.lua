-- Give the partitions of a scheduler its next epoch: what it sent under the one before is rejected from then on.
-- KEYS: epochs   ARGV: epoch of the scheduler, its next one   Returns {'OK'}, {'FENCED', epoch} or {'LOST', 'the epoch', found}. Idempotent.
local epochs = {}
for _, key in ipairs(KEYS) do
  local epoch = redis.call('GET', key)
  if epoch ~= ARGV[1] and epoch ~= ARGV[2] then
    if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
      return {'FENCED', epoch}
    end
    return {'LOST', 'the epoch', epoch or ''}
  end
  epochs[#epochs + 1] = key
  epochs[#epochs + 1] = ARGV[2]
end
redis.call('MSET', unpack(epochs))
return {'OK'}
