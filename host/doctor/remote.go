package doctor

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/statedir"
)

const (
	remoteTime  = 15 * time.Second // maximum time for the examination of one remote
	remoteLanes = 8                // maximum number of remotes that are examined concurrently
)

// RemoteCheck selects the remotes that ExamineRemotes examines.
type RemoteCheck struct {
	Named []string // URLs of the remotes that the user has named; a failure is LevelBad
	// URLs of the remotes of mounts, to which those of all sessions are added; a failure is LevelWarn
	Known []string
	Token control.Secret // token for the remotes in Named
	// Login returns the URL of a remote that the user has not named, with the credentials that this host has for this
	// remote, or the URL unchanged. It may be nil. It is called by one goroutine.
	Login func(url string) string
	// TokenFile is the path of a file with the token for the remotes in Named.
	TokenFile string
}

// ExamineRemotes checks which capabilities the remotes have, and whether session remotes accept pushes. It examines up
// to remoteLanes remotes concurrently, and takes at most remoteTime for each remote.
func ExamineRemotes(ctx context.Context, state string, c RemoteCheck) []Finding {
	known := slices.Clone(c.Known)
	h := statedir.Homes{State: state, Log: zap.NewNop()}
	if ids, _, err := h.IDs(); err == nil {
		for _, id := range ids {
			if r, err := statedir.ReadRecord(filepath.Join(h.Dir(), id)); err == nil {
				known = append(known, r.Remote)
			}
		}
	}
	// A known remote that the user has also named is examined only once.
	slices.Sort(known)
	known = slices.DeleteFunc(slices.Compact(known), func(r string) bool { return slices.Contains(c.Named, r) })
	sessions := farSessions(h)
	far := slices.Sorted(maps.Keys(sessions))
	// Each remote has a separate doctor, because a doctor must not be used concurrently.
	all := make([]doctor, len(c.Named)+len(known)+len(far))
	lanes := make(chan struct{}, remoteLanes)
	var wg sync.WaitGroup
	login := func(url string) string {
		if c.Login == nil {
			return url
		}
		return c.Login(url)
	}
	for i, url := range append(slices.Clone(c.Named), known...) {
		if i >= len(c.Named) {
			url = login(url)
		}
		wg.Go(func() {
			lanes <- struct{}{}
			defer func() { <-lanes }()
			// These timeouts are short, so that a remote that does not answer does not delay the command for long.
			o := transport.Options{Connect: remoteTime / 2, Stall: remoteTime,
				BundleDir: func(url string) string { return statedir.BundleDir(state, url) }}
			bad := all[i].warn // a failure is only a warning, because a mount continues without its remote
			if i < len(c.Named) {
				o.Login, bad = transport.NewLogin(string(c.Token), c.TokenFile), all[i].wrong
			}
			ctx, cancel := context.WithTimeout(ctx, remoteTime)
			defer cancel()
			all[i].remote(ctx, url, o, bad)
		})
	}
	for i, url := range far {
		at := login(url)
		wg.Go(func() {
			lanes <- struct{}{}
			defer func() { <-lanes }()
			ctx, cancel := context.WithTimeout(ctx, remoteTime)
			defer cancel()
			all[len(c.Named)+len(known)+i].sessionRemote(ctx, at, sessions[url])
		})
	}
	wg.Wait()
	var findings []Finding
	for _, d := range all {
		findings = append(findings, d.findings...)
	}
	return findings
}

// remote checks which capabilities the remote at url has. It calls bad to report that the remote cannot be used.
func (d *doctor) remote(ctx context.Context, url string, o transport.Options,
	bad func(object, hint, format string, args ...any)) {
	shown := statedir.WithoutSecrets(url)
	r, err := transport.Open(url, o)
	if err != nil {
		e := fault.Explain("open", shown, err)
		bad(shown, e.Hint, "%s", e.Cause)
		return
	}
	defer r.Close()
	start := time.Now()
	caps, err := r.Capabilities(ctx)
	switch {
	// A remote without protocol version 2 can be mounted, but then git downloads the complete repository.
	case errors.Is(err, transport.ErrNoV2):
		d.warn(shown, "with protocol version 2, contents would be fetched when they are read",
			"remote does not support protocol version 2: git will download everything")
		return
	case err != nil:
		e := fault.Explain("reach", shown, fault.Remote(err))
		bad(shown, e.Hint, "%s", e.Cause)
		return
	}
	took := time.Since(start).Round(time.Millisecond)
	has := []string{"protocol version 2"}
	var lacks []string
	note := func(there bool, name, without string) {
		if there {
			has = append(has, name)
		} else {
			lacks = append(lacks, "no "+name+" ("+without+")")
		}
	}
	note(caps.Filter, "filter", "the files of a commit are downloaded at once")
	note(caps.Shallow, "shallow", "history is downloaded before the mount")
	if caps.ObjectInfo {
		has = append(has, "object-info")
	}
	asked, any, err := wantsAnyID(ctx, r, caps)
	// A server may report its capabilities even if it cannot read its objects, so the check also fetches objects.
	if err != nil {
		e := fault.Explain("fetch from", shown, fault.Remote(err))
		bad(shown, e.Hint, "remote answers, but serves no objects: %s", e.Cause)
		return
	}
	if asked {
		note(any, "wants by any object ID", "contents cannot be fetched one by one")
	}
	agent := ""
	if caps.Agent != "" {
		agent = ", " + caps.Agent
	}
	tail := ""
	if !caps.ObjectInfo {
		tail = "; no object-info: the first stat of a file fetches its contents"
	}
	if len(lacks) > 0 {
		d.warn(shown, "set uploadpack.allowFilter and uploadpack.allowAnySHA1InWant on the server", "%s (%v%s); has %s%s",
			strings.Join(lacks, ", "), took, agent, strings.Join(has, ", "), tail)
		return
	}
	d.ok(shown, "%s (%v%s)%s", strings.Join(has, ", "), took, agent, tail)
}

// wantsAnyID reports whether a remote serves objects whose IDs no ref names. To determine this, wantsAnyID fetches a
// commit, and then the tree of that commit. If known is false, the result any is not certain.
func wantsAnyID(ctx context.Context, r *transport.Remote, caps transport.Capabilities) (known, any bool, err error) {
	if !caps.Filter || !caps.Shallow { // without filters and shallow fetches, the request would fetch the whole repository
		return false, false, nil
	}
	refs, err := r.Refs(ctx, []string{"HEAD"})
	if err != nil || len(refs.List) == 0 {
		return false, false, err
	}
	tree, err := oneTree(ctx, r, caps.Format, transport.FetchRequest{Wants: []object.ID{refs.List[0].ID}, Depth: 1,
		Filter: noTrees})
	if err != nil || tree.IsZero() { // for example, the server supports no filter but blob:none
		return false, false, ctx.Err()
	}
	_, err = oneTree(ctx, r, caps.Format, transport.FetchRequest{Wants: []object.ID{tree}, Filter: noTrees})
	// This error means that the server refuses IDs that no ref names.
	var refused transport.NotOurRef
	if errors.As(err, &refused) {
		return true, false, nil
	}
	return true, err == nil, err
}

const noTrees = "tree:0" // filter for a request that fetches only the wanted objects

// oneTree sends the request req, whose reply has one or two objects. It returns the ID of the tree of the commit in the
// reply, or the zero ID if the reply contains no commit.
func oneTree(ctx context.Context, r *transport.Remote, f object.Format,
	req transport.FetchRequest) (tree object.ID, err error) {
	resp, err := r.Fetch(ctx, req)
	if err != nil {
		return tree, err
	}
	defer resp.Pack.Close()
	// Only commits and trees were requested, so an object that does not fit into memory is refused.
	none := func(int64) (*os.File, error) { return nil, errors.New("object is too large") }
	_, err = odb.Unpack(ctx, resp.Pack, odb.UnpackOptions{
		Format: f, SpoolOver: object.MaxTreeSize, MaxObjectSize: object.MaxTreeSize, Spool: none,
		Base: func(object.ID) (io.ReaderAt, int64, func(), error) {
			return nil, 0, nil, errors.New("pack has a delta, but one object was requested")
		},
	}, func(o odb.Object) error {
		if o.Type == object.Commit {
			if info, err := object.ParseCommit(f, o.Data); err == nil {
				tree = info.Tree
			}
		}
		return nil
	})
	return tree, err
}
