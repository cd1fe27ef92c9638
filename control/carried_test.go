package control

import (
	"fmt"
	"slices"
	"testing"
)

func TestForkRequestsChooseIgnoredFiles(t *testing.T) {
	some, readOnly := []string{"x"}, MountRequest{ReadOnly: true}
	for _, test := range []struct {
		r  ForkRequest
		ok bool
	}{
		{ForkRequest{}, true},
		{ForkRequest{Ignored: IgnoredListed, Carry: some, LeaveOut: some}, true},
		{ForkRequest{Ignored: IgnoredAll, LeaveOut: some}, true},
		{ForkRequest{Ignored: IgnoredNone}, true},
		{ForkRequest{Mount: readOnly}, true},
		{ForkRequest{Ignored: IgnoredNone, Mount: readOnly}, true},
		{ForkRequest{Ignored: IgnoredNone, SessionRemote: "x"}, true},
		{ForkRequest{Ignored: IgnoredListed, SessionRemote: "x"}, false},
		{ForkRequest{Ignored: "some"}, false},
		{ForkRequest{Ignored: IgnoredAll, Carry: some}, false},
		{ForkRequest{Ignored: IgnoredNone, Carry: some}, false},
		{ForkRequest{Ignored: IgnoredNone, LeaveOut: some}, false},
		{ForkRequest{Ignored: IgnoredAll, Mount: readOnly}, false},
		{ForkRequest{Carry: some, Mount: readOnly}, false},
	} {
		if err := test.r.validateIgnored(); (err == nil) != test.ok {
			t.Errorf("request %+v: got %v", test.r, err)
		}
	}
}

func TestCarriedNamesFewPaths(t *testing.T) {
	var c Carried
	var secrets []string
	for i := range 150 {
		secrets = append(secrets, fmt.Sprint(i))
	}
	c.SetSecrets(secrets)
	if len(c.Secrets) != 100 || c.Secrets[99] != "99" {
		t.Errorf("carried: got %d secrets", len(c.Secrets))
	}
}

// An old daemon must not make a fork without the paths that the request names.
func TestAnOldDaemonRefusesToCarryPaths(t *testing.T) {
	if got := (ForkRequest{Carry: []string{".env"}}).needs(); !slices.Equal(got, []string{"carry"}) {
		t.Errorf("fork with paths to carry: got the needs %q", got)
	}
	if got := (ForkRequest{LeaveOut: []string{".env"}}).needs(); len(got) > 0 {
		t.Errorf("fork without paths: got the needs %q", got)
	}
}

// An old daemon must not make a fork without the ignored files if all of them are to be carried.
func TestAnOldDaemonRefusesToCarryAll(t *testing.T) {
	for _, ignored := range []Ignored{IgnoredDefault, IgnoredListed, IgnoredNone, IgnoredAll} {
		r := ForkRequest{Ignored: ignored, Head: &NewHead{Detach: true}}
		if got := r.needs(); slices.Contains(got, "ignored") != (ignored == IgnoredAll) || !slices.Contains(got, "head") {
			t.Errorf("fork with the ignored files %q: got the needs %q", ignored, got)
		}
	}
}
