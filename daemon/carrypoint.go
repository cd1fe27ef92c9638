package daemon

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/statedir"
)

// point makes a point of the working tree as it is now. made is false if nothing has changed since the last one, which is
// given then.
func (c *carry) point(ctx context.Context, reason session.Reason, message string) (p session.Point, made bool, err error) {
	p, report, err := c.capture(ctx, reason, message)
	return p, report.Made, err
}

// capture is point with all that is to be told of it.
func (c *carry) capture(ctx context.Context, reason session.Reason, message string) (session.Point, capture.Report, error) {
	if !c.mount.triedGit(ctx) {
		return session.Point{}, capture.Report{}, errEnded
	}
	return c.captureNow(ctx, reason, message)
}

func (c *carry) captureNow(ctx context.Context, reason session.Reason, message string) (p session.Point, report capture.Report, err error) {
	if err = c.alone(ctx); err != nil {
		return p, report, err
	}
	defer c.letOthers()
	if _, err = c.open(ctx); err != nil {
		return p, report, err
	}
	c.mu.Lock()
	capturer := c.capturer
	c.mu.Unlock()
	signed := drain(c.git.moved) // of which nobody else may know: not every policy has somebody who waits for it
	if signed {
		c.git.told()
	}
	began := time.Now()
	err = c.mount.guarded("make a checkpoint", func() (err error) {
		p, report, err = capturer.Point(ctx, reason, message)
		return err
	})
	c.note("make a checkpoint", err)
	if err != nil {
		if signed {
			c.git.sign()
		}
		return p, report, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.seen, c.leftOut, c.unread = p, began, report.Left, report.Unread
	if report.Made {
		c.points++
		c.counted.made++
		c.counted.paused = max(c.counted.paused, report.Paused)
		c.counted.took += report.Took
		c.mount.daemon.log.Debug("checkpoint made", zap.String("dir", c.mount.dir), zap.String("id", string(p.ID)), zap.String("reason", string(reason)),
			zap.Int64("changed", p.Changed), zap.Duration("paused", report.Paused), zap.Duration("took", report.Took))
	}
	return p, report, nil
}

// alone waits until nobody else makes points, or removes them; letOthers ends that.
func (c *carry) alone(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *carry) letOthers() { <-c.turn }

// leftOf is what the newest point does not hold of what there was when somebody looked last; false: it is another point, or
// nobody has looked. What a point did not hold when it was made is in its State.
func (c *carry) leftOf(id session.PointID) ([]capture.LeftOut, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leftOut, c.last.ID == id && c.leftOut != nil
}

// fewSegments is how many segments of points are counted while somebody waits.
const fewSegments = 4

// recount counts the points: those that are found, or some of which were removed.
func (c *carry) recount() {
	c.mu.Lock()
	repo, made := c.repo, c.counted.made
	c.mu.Unlock()
	points, err := repo.Points(0)
	if err != nil {
		c.mount.daemon.log.Warn("count checkpoints", zap.String("session", c.mount.session), zap.Error(err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.points, c.old = int64(len(points))+int64(c.counted.made-made), oldPoints(points, time.Now())
}

// manyOld is how many points that gc is for are worth a word: whoever counts or lists points reads each of them.
const manyOld = 1000

// oldPoints counts the points, newest first, of which gc drops all but the last of each day and those that are pinned.
func oldPoints(points []session.Point, now time.Time) int {
	i := slices.IndexFunc(points, func(p session.Point) bool { return now.Sub(p.Time) > session.DefaultAll })
	if i < 0 {
		return 0
	}
	return len(points) - i
}

// writeBackTime bounds the wait for writes that need what a remote does not give: the bytes are in the next point.
const writeBackTime = 5 * time.Second

// writeBack brings what the kernel has of programs' writes to the tree. When the kernel has let go of the mount there is
// nothing more to come.
func (c *carry) writeBack(ctx context.Context) error {
	if c.mount.server == nil || c.mount.letsGo() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, writeBackTime)
	defer cancel()
	err := c.mount.server.WriteBack(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		c.mount.daemon.log.Warn("a checkpoint is made without writes that are still in flight", zap.String("dir", c.mount.dir), zap.Error(err))
		return nil
	}
	return err
}

// letsGo says whether the mount is being taken down: the kernel does not have it any more.
func (m *mount) letsGo() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopping
}

// beginCarrier has the user's refs follow.
func (c *carry) beginCarrier(ctx context.Context) {
	m := c.mount
	o := writeback.CarrierOptions{
		Repo: func() (*session.Repo, error) { return c.open(context.WithoutCancel(ctx)) }, Session: m.session, GitDir: m.gitPath(),
		Format: m.snapshot().Format, Refs: m.store.Refs, Watch: c.git.watch(m.daemon.watch), Moved: c.git.movedRef, Failed: func(err error) { c.note("push refs", err) },
		Log: m.daemon.log,
	}
	if c.optionsNow().Remote == control.RemoteEmbedded {
		o.Provide = m.store
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.carrier = writeback.NewCarrier(o)
}

// rawBlob reads a small blob of the base as it is stored.
func (m *mount) rawBlob(ctx context.Context, path string, id object.ID) ([]byte, error) {
	return m.readIgnoreFile(ctx, fetch.Blob{ID: id, Path: path, Link: true}) // what a link holds is never converted
}

// unsaved says whether there may be anything to make a point of, in files or of what only git knows.
func (c *carry) unsaved() bool {
	c.mu.Lock()
	repo := c.repo
	c.mu.Unlock()
	m := c.mount
	if m.changed() > 0 || m.massRemoved() || repo == nil && statedir.HasSessionRepo(m.home.Dir) || repo != nil && !isEmpty(repo) {
		return true
	}
	b := m.beginning()
	if b == nil {
		return false
	}
	untouched, err := b.Untouched(m.gitPath(), m.snapshot().Format)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // before there is a git directory nobody can have done anything to it
		m.daemon.log.Debug("look at git", zap.String("dir", m.dir), zap.Error(err))
	}
	return err == nil && !untouched
}

// beginning is how git was when the commit was mounted; nil: a point was.
func (m *mount) beginning() *capture.Beginning {
	base, err := m.record.Base()
	if err != nil || !base.Shown.IsZero() {
		return nil
	}
	b := &capture.Beginning{Commit: base.Commit, Tree: base.Tree, Refs: m.store.Refs}
	if strings.HasPrefix(base.Ref, "refs/heads/") {
		b.Branch = base.Ref
	}
	return b
}

// isEmpty says whether a session's repository says that the session is there, and nothing more.
func isEmpty(repo *session.Repo) bool {
	refs, err := repo.Refs("")
	return err == nil && !slices.ContainsFunc(refs, func(r packedrefs.Ref) bool { return r.Name != session.MetaRef(repo.Session()) })
}

// keepAll has the repository hold all that is there.
func (c *carry) keepAll(ctx context.Context, reason session.Reason) error {
	if !c.mount.gitWasTried() && !c.mount.hasIndex() && c.mount.changed() == 0 && !c.mount.massRemoved() { // neither git nor anybody else did anything
		return nil
	}
	c.mu.Lock()
	off := c.kind == control.PolicyOff
	c.mu.Unlock()
	err := c.flush(ctx)
	if off && reason != session.Manual || !c.unsaved() {
		return unkept(err)
	}
	if _, _, pointErr := c.captureNow(ctx, reason, ""); pointErr != nil {
		return errors.Join(err, unkept(pointErr))
	}
	if c.optionsNow().Remote == control.RemoteEmbedded { // commits are in the point; what is missing is their contents, for clones
		return err
	}
	return unkept(err)
}

// flush has the refs that are there in the session's repository.
func (c *carry) flush(ctx context.Context) error {
	c.mu.Lock()
	carrier := c.carrier
	c.mu.Unlock()
	if carrier == nil {
		return nil
	}
	return carrier.Flush(ctx)
}

// unkeptError says why the last of the work is neither in a point nor carried.
type unkeptError struct{ cause error }

func unkept(err error) error {
	if err == nil {
		return nil
	}
	return unkeptError{err}
}

func (e unkeptError) Error() string { return e.cause.Error() }

func (e unkeptError) Unwrap() error { return e.cause }
