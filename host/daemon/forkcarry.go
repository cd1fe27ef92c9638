package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// carrier carries files that checkpoints leave out, such as ignored ones, from a mounted session to a fork on the same
// host. The contents are sealed and moved to a share, which both overlays then use. Until the overlay of the fork lists
// the shares, the carrier holds them, so that they are not removed if the parent is removed in the meantime.
type carrier struct {
	d       *Daemon
	request control.ForkRequest
	to      control.MountRequest // completed request for the mount of the fork
	parent  origin.Home
	held    []func() // release the shares
}

// errNotCarried is the error of a fork that was to carry all ignored files.
var errNotCarried = errors.New("ignored files cannot be carried to the fork")

// refusal returns why nothing can be carried, or "". It is for users.
func (c *carrier) refusal() string {
	of := c.parent.Record
	switch {
	case c.parent.Mounted == nil || !c.parent.Mounted.Writable:
		return "the session is not mounted for writing"
	case c.request.ID != "":
		return "the present ones do not belong to an earlier checkpoint"
	case c.to.Tenant != "" && c.to.Tenant != of.Tenant:
		return "the session belongs to another tenant"
	case c.to.UID != of.UID || c.to.GID != of.GID:
		return fmt.Sprintf("they belong to user %d and group %d", of.UID, of.GID)
	}
	return ""
}

// wants reports whether the request is for a fork that carries something, if that is possible.
func (c *carrier) wants() bool {
	return !c.to.ReadOnly && c.request.Ignored != control.IgnoredNone
}

// capture makes a checkpoint of the present state of the parent, which is mounted for writing, and takes the files
// to carry.
func (c *carrier) capture(ctx context.Context) (session.Checkpoint, capture.Report, origin.Besides, error) {
	var b origin.Besides
	agent := c.parent.Mounted.Agent
	if c.wants() {
		b.Failed = c.refusal()
		if err := c.d.host.Homes.CheckShares(c.parent.Dir); err != nil && b.Failed == "" {
			b.Failed = err.Error()
		}
	}
	if !c.wants() || b.Failed != "" {
		p, report, err := agent.Capture(ctx, session.Forking, "")
		return p, report, b, err
	}
	p, report, err := agent.Capture(ctx, session.Forking, "", capture.Carrying{
		Begin: c.begin, All: c.request.Ignored == control.IgnoredAll, Listed: c.request.Ignored == control.IgnoredListed,
		Include: c.request.Carry, Exclude: c.excluded(),
	})
	if err != nil {
		return p, report, b, err
	}
	if err = report.NotCarried; err != nil {
		c.d.host.Log.Warn("carry ignored files to a fork", zap.String("dir", c.parent.Mounted.Dir), zap.Error(err))
		b.Failed = err.Error()
		return p, report, b, nil
	}
	b.Taken = report.Carried
	return p, report, b, nil
}

// excluded returns the globs of paths that are not carried. Redirected directories are among them, because they are
// empty in the working tree of the parent.
func (c *carrier) excluded() []string {
	globs := slices.Clone(c.request.LeaveOut)
	for _, r := range c.parent.Record.Redirects {
		globs = append(globs, "/"+disk.QuoteGlob(r.Path)+"/")
	}
	return globs
}

// begin begins a seal of the contents of the parent, for a new share.
func (c *carrier) begin() (*worktree.Seal, error) {
	id, release, err := c.d.host.Homes.NewShare(time.Now())
	if err != nil {
		return nil, err
	}
	c.held = append(c.held, release)
	seal, err := c.parent.Mounted.BeginSeal(id)
	if err != nil {
		return nil, err
	}
	if err := c.hold(); err != nil {
		seal.Close()
		return nil, err
	}
	return seal, nil
}

// hold holds all shares that the parent uses. It is called during the seal, during which overlay.Reclaim does nothing.
// So the parent removes no file that it has at the moment of the seal, even if it no longer needs the file afterwards.
// A share that does not exist yet is held, too: this fork may move files to it that an earlier fork has sealed.
func (c *carrier) hold() error {
	listed, err := overlay.ListedShares(filepath.Join(c.parent.Dir, "overlay"))
	if err != nil {
		return err
	}
	for _, id := range listed {
		release, err := c.d.host.Homes.MakeShare(id)
		if err != nil {
			return err
		}
		c.held = append(c.held, release)
	}
	return nil
}

// release releases the shares. A share that is not needed is removed.
func (c *carrier) release() {
	for _, release := range c.held {
		release()
	}
	c.held = nil
}

// check returns an error if all ignored files were to be carried, and b cannot be.
func (c *carrier) check(b origin.Besides) error {
	if c.request.Ignored == control.IgnoredAll && b.Taken == nil {
		return fmt.Errorf("%w: %s", errNotCarried, cmp.Or(b.Failed, c.refusal()))
	}
	return nil
}
