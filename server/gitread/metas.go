package gitread

import (
	"context"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/session"
)

// maxMeta is the maximum size of session.json, and of the list of its transitions, in bytes.
const maxMeta = 1 << 20

// Metas returns the metadata of sessions. The parameter refs has the ids of all refs of the repository by their names. An element of the
// result is nil if the metadata cannot be read, because it is missing or was written by a later version. The state is the present one
// (session.Meta.Now).
func (r Repo) Metas(ctx context.Context, refs map[string]string, names []string) ([]*session.Meta, error) {
	var objects []string
	for _, name := range names {
		commit := refs[session.MetaRef(name)]
		objects = append(objects, commit+":session.json", commit+":transitions.jsonl")
	}
	metas := make([]*session.Meta, len(names))
	var text []byte
	err := r.Contents(ctx, objects, maxMeta, func(i int, c read.Content) {
		if i%2 == 0 {
			text = c.Bytes
			return
		}
		if m, err := session.ParseMeta(text, c.Bytes); err == nil && m.Session == names[i/2] {
			m.State = m.Now(time.Now())
			metas[i/2] = &m
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read sessions: %w", err)
	}
	return metas, nil
}

// CheckpointOf parses the commit of a checkpoint.
func CheckpointOf(c read.Content) (session.Checkpoint, error) {
	id, err := object.ParseID(c.ID)
	if err != nil {
		return session.Checkpoint{}, err
	}
	return session.ParseCheckpoint(id.Format(), id, c.Bytes)
}
