package imports

import (
	"context"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/receive"
	"github.com/artifactfs/artifactfs/server/records"
)

// store stores the pack of an import; hash is "" if there is no pack. It returns an error if a push could not contain
// the objects, or if the namespace would exceed its quotas.
func (a *attempt) store(ctx context.Context, hash string, changes []records.RefUpdate) (*records.Pack, error) {
	var more records.Amounts
	for _, u := range changes {
		if u.Creates() {
			more.Refs++
		}
	}
	dir := filepath.Join(a.dir, "objects")
	if hash != "" {
		if err := receive.CheckSizes(ctx, dir, a.repo.ObjectFormat, []string{hash}); err != nil {
			return nil, err
		}
		info, err := os.Stat(filepath.Join(dir, "pack", "pack-"+hash+".pack"))
		if err != nil {
			return nil, objects.Classify(err)
		}
		more.Bytes = info.Size()
	}
	if err := a.o.Quotas.Add(ctx, a.repo.Namespace, more); err != nil || hash == "" {
		return nil, err
	}
	pack, err := a.o.Replicas.Store(ctx, filepath.Join(dir, "pack"), hash)
	if err != nil {
		return nil, err
	}
	return &pack, nil
}
