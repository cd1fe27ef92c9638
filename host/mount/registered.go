package mount

import (
	"context"
	"os"
	"os/exec"
	"strings"

	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// HasRegistration reports whether the mount may have a registry file, from which it is restored after a restart of the
// machine. The mount of a submodule has none, because it is restored with its parent, and no mount has one if there is
// no supervisor, because all mounts end with this process then.
func (m *Mount) HasRegistration() bool { return m.host.Keeper != nil && m.Parent == nil }

// Registration returns the contents of the mount's registry file, or false if the mount is not to be restored after a
// restart of the machine. The request in the result has no secrets, and no nonce, because no client repeats it.
func (m *Mount) Registration() (statedir.Registered, bool) {
	if !m.HasRegistration() || m.Request.Passing {
		return statedir.Registered{}, false
	}
	r := statedir.Registered{Version: statedir.RegistryVersion, Request: m.Request.MountRequest, Record: m.home.Record}
	r.Request.Remote, r.Request.Nonce, r.Request.Session = m.contents.Store.URL(), "", m.Session
	r.Request.CreateRemote = nil
	r.Request.SessionOptions = shown(r.Request.SessionOptions)
	r.Record.Version = statedir.RecordVersion
	return r, true
}

// unregisterUnmounted removes the registry file of a mount that was unmounted without a request to this daemon, for
// example by umount(8). It does nothing while the system shuts down, because then every file system is unmounted.
func (m *Mount) unregisterUnmounted() {
	// If the mount is ending, it is unmounted by a request to this daemon, and that request also removes the file.
	if m.host.Registry.Ending() || m.phase.Ending() || !m.HasRegistration() || isSystemStopping() {
		return
	}
	m.host.Registry.Unregister(m)
}

// returns reports whether the ending mount m is restored when the daemon starts next, because it ends only with the
// daemon or with the machine.
func returns(m *Mount) bool {
	_, ok := m.Registration()
	return ok && (m.host.Registry.Ending() || isSystemStopping())
}

// isSystemStopping reports whether systemd is shutting down the system, which unmounts all file systems.
func isSystemStopping() bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), mountpoint.ProbeTime)
	defer cancel()
	// The error is ignored, because the exit status of systemctl only repeats the state that it prints.
	out, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output()
	return strings.TrimSpace(string(out)) == "stopping"
}
