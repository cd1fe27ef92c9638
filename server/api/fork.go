package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/session"
)

// forkRequest is the body of a request for a fork. The fields from namespace on are extensions.
type forkRequest struct {
	name, description string
	readOnly          bool
	defaultOnly       bool // whether to copy the default branch only
	namespace         string
	commit            string // commit to which the default branch of the fork is set; "": that of the parent
	checkpoint        string // name of a checkpoint whose commit is used as commit
	refs              []string
	transcripts       bool // whether to copy the transcripts of sessions
}

func (c *call) forkRequest() (f forkRequest, err error) {
	in, err := c.body()
	if err != nil {
		return f, err
	}
	f = forkRequest{in.text("name"), in.text("description"), in.flag("read_only"), in.flag("default_branch_only"),
		in.text("namespace"),
		in.text("commit"), in.text("checkpoint"), in.texts("refs"), in.flag("transcripts")}
	if f.namespace == "" {
		f.namespace = c.params["namespace"]
	}
	f.defaultOnly = f.defaultOnly && !c.a.o.Compat
	in.refuse(validRepo(f.name))
	in.refuse(validNamespace(f.namespace))
	if f.commit != "" && !object.ValidID(f.commit) {
		in.refuse(invalid("commit", "Invalid hash"))
	}
	if f.commit != "" && f.checkpoint != "" {
		in.refuse(invalid("checkpoint", "Only one of commit and checkpoint can be given"))
	}
	for _, glob := range f.refs {
		if access.CheckRules([]records.RefRule{{Glob: glob}}) != nil {
			in.refuse(invalid("refs", "Invalid glob"))
		}
	}
	return f, in.err()
}

// all reports whether the fork has the same refs as its parent, so that the refs need not be read.
func (f forkRequest) all() bool {
	return !f.defaultOnly && len(f.refs) == 0 && f.commit == "" && f.checkpoint == ""
}

// forkRepo creates a fork. It copies records and reads no objects, unless a commit or checkpoint for the fork must be
// found, or the fork has sessions, which must be closed.
func forkRepo(c *call) error {
	f, err := c.forkRequest()
	if err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	if f.namespace != c.params["namespace"] {
		if _, err := c.a.o.Guard.Admin(ctx, c.r, f.namespace, records.WriteScope); err != nil {
			return err
		}
	}
	for attempt := 0; ; attempt++ {
		err := c.forkFrom(ctx, f)
		if attempt == forks || !errors.Is(err, records.ErrCollected) {
			return err
		}
	}
}

// forks is the maximum number of attempts to create a fork, because garbage of its parent may be collected at the same
// time.
const forks = 3

// forkFrom creates a fork of the current state of the parent.
func (c *call) forkFrom(ctx context.Context, f forkRequest) error {
	parent, err := c.ready()
	if err != nil {
		return err
	}
	n := records.Creation{Parent: parent.ID, All: f.all(), Version: parent.Version, Repo: records.Repo{
		Namespace: f.namespace, Name: f.name, Description: f.description, DefaultBranch: parent.DefaultBranch,
		ObjectFormat: parent.ObjectFormat, ReadOnly: f.readOnly, BaseURL: parent.BaseURL, BaseCommit: parent.BaseCommit,
		Source: "artifacts:" + parent.Namespace + "/" + parent.Name,
	}}
	if !n.All {
		if n.Refs, n.Version, err = c.forkRefs(ctx, parent, f); err != nil {
			return err
		}
	}
	count, _, err := c.a.o.Records.Packs.Totals(ctx, parent.ID)
	if err != nil {
		return err
	}
	fork, result, err := c.create(n,
		func(s events.Stamp, fork records.Repo) records.Event { return events.Forked(s, parent, fork) })
	if err != nil {
		return found("Repository", err) // the parent was deleted after it was found
	}
	c.count(fork, meter.Fork, 0)
	if err := closeCopies(ctx, c, parent, fork, f); err != nil {
		// Delete the fork, because its sessions would seem to be in use.
		gone := c.a.o.Records.Repos.Delete(context.WithoutCancel(ctx), fork.ID,
			[]records.Event{events.Deleted(c.stamp(), fork)}, c.cause())
		return errors.Join(fmt.Errorf("close the sessions of a fork: %w", err), gone)
	}
	result.Objects = &count
	return c.send(http.StatusCreated, result, nil)
}

// closeCopies closes the sessions that a fork has copied from its parent.
func closeCopies(ctx context.Context, c *call, parent, fork records.Repo, f forkRequest) error {
	has, err := c.a.o.Records.Repos.HasRefs(ctx, fork.ID, records.Below(session.MetaRef("")))
	if err != nil || !has {
		return err
	}
	who := by(c)
	// closing needs no further permission, because the fork itself was allowed
	who.Token.Scope, who.Token.Session, who.Done = records.WriteScope, "", nil
	return c.a.o.Review.CloseCopies(ctx, who, fork, review.Copies{Transcripts: f.transcripts,
		Link: func(name string) string { return sessionlink.Link{Remote: c.remote(parent), Session: name}.String() }})
}

// forkRefs returns the refs of a fork that does not get all refs of its parent, and the version of the parent in which
// their objects were found.
func (c *call) forkRefs(ctx context.Context, parent records.Repo,
	f forkRequest) ([]records.Ref, records.Version, error) {
	all, err := c.a.o.Records.Repos.Refs(ctx, parent.ID)
	if err != nil {
		return nil, parent.Version, found("Repository", err)
	}
	head := "refs/heads/" + parent.DefaultBranch
	refs := slices.DeleteFunc(slices.Clone(all), func(r records.Ref) bool {
		switch {
		case r.Name == head:
			return f.commit != "" || f.checkpoint != ""
		case f.defaultOnly:
			return true
		}
		return len(f.refs) > 0 && !slices.ContainsFunc(f.refs, func(glob string) bool { return refname.Match(glob, r.Name) })
	})
	if f.commit == "" && f.checkpoint == "" {
		return refs, parent.Version, nil
	}
	for _, r := range refs {
		if strings.HasPrefix(r.Name, head+"/") || strings.HasPrefix(head, r.Name+"/") {
			return nil, parent.Version, invalid("refs", "Default branch %s and ref %s cannot both exist",
				parent.DefaultBranch, r.Name)
		}
	}
	id, version, err := forkPoint(ctx, c, parent, f, all)
	return append(refs, records.Ref{Name: head, ID: id}), version, err
}

// forkPoint returns the commit at which a fork begins, and the version of the parent that has the commit. It searches a
// copy of the replica, because the replica itself can have packs that the parent does not list any more.
func forkPoint(
	ctx context.Context, c *call, parent records.Repo, f forkRequest, all []records.Ref,
) (id string, v records.Version, err error) {
	err = use(ctx, c, parent, func(dir *replica.Replica, g gitread.Repo) error {
		listed, err := dir.Copy(ctx)
		if err != nil {
			return err
		}
		defer listed.Remove()
		v = listed.Repo.Version
		// the garbage collection may have removed objects of the refs that were read before
		if v.Collections != parent.Collections {
			return records.ErrCollected
		}
		g.Dir, g.Pool = listed.Dir, nil // no process for the directory is kept, because the copy is removed at once
		if f.commit != "" {
			id = f.commit
			return found("Commit", g.Reachable(ctx, id))
		}
		of, name := sessionlink.Split(f.checkpoint)
		refs := make(map[string]string, len(all))
		for _, r := range all {
			refs[r.Name] = r.ID
		}
		id, err = g.Checkpoint(ctx, refs, of, name)
		switch {
		case errors.Is(err, gitread.ErrCheckpointName):
			return invalid("checkpoint", "Must be the name of a session, SESSION@ID, or the id of a checkpoint")
		case errors.Is(err, gitread.ErrAmbiguous):
			return invalid("checkpoint", "Several checkpoints have an id that begins like this")
		}
		return found("Checkpoint", err)
	})
	return id, v, err
}
