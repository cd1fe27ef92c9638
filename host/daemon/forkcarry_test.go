package daemon

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/worktree/carry"
)

// Nothing is carried to the fork of another user or tenant, or from a session that is not mounted for writing.
func TestForksToWhichNothingIsCarried(t *testing.T) {
	for _, test := range []struct {
		what   string
		change func(c *carrier)
		want   string // part of the reason
	}{
		{"fork of the present files", func(*carrier) {}, ""},
		{"fork without a tenant", func(c *carrier) { c.to.Tenant = "" }, ""},
		{"unmounted session", func(c *carrier) { c.parent.Mounted = nil }, "not mounted"},
		{"read-only mount", func(c *carrier) { c.parent.Mounted.Writable = false }, "not mounted for writing"},
		{"earlier checkpoint", func(c *carrier) { c.request.ID = "x" }, "earlier checkpoint"},
		{"earlier checkpoint with all files", func(c *carrier) {
			c.request.ID, c.request.Ignored = "x", control.IgnoredAll
		}, "do not belong to an earlier checkpoint"},
		{"other tenant", func(c *carrier) { c.to.Tenant = "other" }, "another tenant"},
		{"other user", func(c *carrier) { c.to.UID = 8 }, "user 7 and group 8"},
		{"other group", func(c *carrier) { c.to.GID = 7 }, "user 7 and group 8"},
	} {
		c := &carrier{to: control.MountRequest{Tenant: "team", MountAccess: control.MountAccess{UID: 7, GID: 8}},
			parent: origin.Home{Record: statedir.Record{Tenant: "team", UID: 7, GID: 8},
				Mounted: &catalog.Mounted{Writable: true}}}
		test.change(c)
		if got := c.refusal(); test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
	}
}

// Only a request for all ignored files fails if they cannot be carried.
func TestForkNeedsAllIgnoredFiles(t *testing.T) {
	for _, ignored := range []control.Ignored{control.IgnoredDefault, control.IgnoredListed, control.IgnoredNone} {
		c := &carrier{request: control.ForkRequest{Ignored: ignored}}
		if err := c.check(origin.Besides{Failed: "no space"}); err != nil {
			t.Errorf("ignored files %q: got %v", ignored, err)
		}
	}
	c := &carrier{request: control.ForkRequest{Ignored: control.IgnoredAll}}
	if err := c.check(origin.Besides{Failed: "no space"}); !errors.Is(err, errNotCarried) ||
		!strings.Contains(err.Error(), "no space") {
		t.Errorf("all ignored files: got %v", err)
	}
	if err := c.check(origin.Besides{}); !errors.Is(err, errNotCarried) || !strings.Contains(err.Error(), "not mounted") {
		t.Errorf("all ignored files of an unmounted session: got %v", err)
	}
	if err := c.check(origin.Besides{Taken: &capture.Taken{Files: &carry.Files{}}}); err != nil {
		t.Errorf("all ignored files, of which there are none: got %v", err)
	}
}

// Redirected directories are not carried, whatever characters are in their paths.
func TestRedirectsAreNotCarried(t *testing.T) {
	c := &carrier{request: control.ForkRequest{LeaveOut: []string{"*.o"}}}
	c.parent.Record.Redirects = []statedir.Redirect{{Path: "node_modules"}, {Path: "a/[b]*"}}
	want := []string{"*.o", "/node_modules/", `/a/\[b]\*/`}
	if got := c.excluded(); !slices.Equal(got, want) || len(c.request.LeaveOut) != 1 {
		t.Errorf("globs: got %q, want %q", got, want)
	}
}
