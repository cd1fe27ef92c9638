package mount

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/mount/attach"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// leaveTime is the maximum time that closeHome takes to close an ending mount. None of its steps waits for the network.
const leaveTime = 5 * time.Second

// open opens the working tree of the mount, and the part of the mount that serves git commands.
func (m *Mount) open() error {
	err := m.attachment.Open(m.sessionSide.agent.Automatic())
	if m.attachment.Tree != nil {
		m.openSide()
	}
	return err
}

// services returns the parts of the mount that package fuse calls.
func (m *Mount) services() attach.Services {
	return attach.Services{Await: m.Git().Await, Objects: m.Git().Objects(), Guard: m.sessionSide.beginLocks()}
}

// parentDir returns the directory of the mount that contains this one as a submodule. It returns "" if there is none.
func (m *Mount) parentDir() string {
	if m.Parent == nil {
		return ""
	}
	return m.Parent.Dir
}

// Writable reports whether the mount has a session and is not read-only.
func (m *Mount) Writable() bool { return m.attachment.Writable() }

// announce reports as progress which session the mount resumes, and which problems were found.
func (m *Mount) announce(progress func(control.Progress)) {
	if m.home.Resumed {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s: %s", m.Session,
			statedir.Unsaved{Paths: m.attachment.Changed()})})
	}
	for _, message := range m.beginning.messages() {
		progress(control.Progress{Message: message})
	}
	if by, newest := m.sessionSide.agent.ContinuedBy(); m.home.Resumed && by != "" {
		of := m.Session + "@" + string(newest)
		if m.contents.Objects.SessionRemote != nil {
			of = sessionlink.Link{Remote: m.contents.Objects.SessionRemote.URL(), Session: m.Session}.String()
		}
		progress(control.Progress{Message: fmt.Sprintf("%s has continued session %s since: these are the files of this host; "+
			"artifactfs session fork %s DIR mounts the newest ones", by, m.Session, control.ShellWord(of))})
	}
	if m.home.OtherOwner {
		progress(control.Progress{Message: fmt.Sprintf("files belong to user %d and group %d, as when the session began",
			m.home.Record.UID, m.home.Record.GID)})
	}
	for _, problem := range m.attachment.Tree.Overlay().Recovery().Problems {
		progress(control.Progress{Message: problem})
	}
	for _, note := range append(m.attachment.Redirects.Notes(), m.submodules.problems()...) {
		progress(control.Progress{Message: note})
	}
}

// closeHome closes the tree of a mount that the kernel has unmounted, and then closes the home. It is also called for a
// mount whose start has failed; some fields of such a mount are nil.
func (m *Mount) closeHome() home.Outcome {
	if !m.home.Locked() {
		return home.Outcome{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	e := home.End{
		ReadOnly: m.Request.ReadOnly, Opened: m.attachment.Tree != nil, Served: m.phase.Served(),
		Discard: m.ending.discards(), Remove: m.ending.removes(), Until: m.ending.expiry(time.Now()),
	}
	var err error
	e.Left, e.Err = m.attachment.Close(ctx)
	// Objects and refs in the git directory are changes of the user even if no file was changed.
	if e.Left.Git, err = gitdir.HasWork(ctx, m.home.GitDir()); err != nil {
		e.Err = errors.Join(e.Err, err)
	}
	// If this mount has created the session and was never served, the checkpoints of the session are not kept.
	e.Left.Checkpoints = statedir.HasSessionRepo(m.home.Dir) && !m.sessionSide.agent.Empty() &&
		(e.Served || !m.home.Created)
	return m.home.Close(e)
}
