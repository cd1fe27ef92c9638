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

// EachMeta calls do with the metadata of each session in the order of the names, or with the reason why they cannot be
// read. The parameter refs has the ids of all refs of the repository by their names.
func (r Repo) EachMeta(ctx context.Context, refs map[string]string, names []string,
	do func(i int, m session.Meta, err error)) error {
	var objects []string
	for _, name := range names {
		commit := refs[session.MetaRef(name)]
		objects = append(objects, commit+":session.json", commit+":transitions.jsonl")
	}
	var text []byte
	err := r.Contents(ctx, objects, maxMeta, func(i int, c read.Content) {
		if i%2 == 0 {
			text = c.Bytes
			return
		}
		m, err := session.ParseMeta(text, c.Bytes)
		if err == nil && m.Session != names[i/2] {
			err = fmt.Errorf("%w: it belongs to session %.140q", session.ErrNotMeta, m.Session)
		}
		do(i/2, m, err)
	})
	if err != nil {
		return fmt.Errorf("read sessions: %w", err)
	}
	return nil
}

// Metas returns the metadata of sessions. An element of the result is nil if the metadata cannot be read, because it is
// missing or was written by a later version. The state is the present one (session.Meta.Now).
func (r Repo) Metas(ctx context.Context, refs map[string]string, names []string) ([]*session.Meta, error) {
	metas := make([]*session.Meta, len(names))
	return metas, r.EachMeta(ctx, refs, names, func(i int, m session.Meta, err error) {
		if err == nil {
			m.State = m.Now(time.Now())
			metas[i] = &m
		}
	})
}

// CheckpointOf parses the commit of a checkpoint.
func CheckpointOf(c read.Content) (session.Checkpoint, error) {
	id, err := object.ParseID(c.ID)
	if err != nil {
		return session.Checkpoint{}, err
	}
	return session.ParseCheckpoint(id.Format(), id, c.Bytes)
}
