package quota

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

// TestQuotas checks that a namespace is refused data that exceeds a quota until it has removed some, and requests until
// the next minute, and that other namespaces are not affected.
func TestQuotas(t *testing.T) {
	var l Limits
	if err := l.Set("bytes=1000,repositories=2,refs=10,requests=3"); err != nil {
		t.Fatal(err)
	}
	stored, now := records.Amounts{Bytes: 900, Repos: 2, Refs: 8}, time.Unix(600, 0)
	k := New(&records.DB{Namespaces: &records.Namespaces{}}, l)
	k.now = func() time.Time { return now }
	k.measure = func(context.Context, string) (records.Amounts, error) { return stored, nil }
	add := func(more records.Amounts, want string) {
		t.Helper()
		var e Exceeded
		if err := k.Add(t.Context(), "ns", more); (want != "") != errors.As(err, &e) || e.What != want {
			t.Errorf("add %+v: got %v, want a refusal for %q", more, err, want)
		}
	}
	add(records.Amounts{Repos: 1}, repositories)
	add(records.Amounts{Refs: 3}, refs)
	add(records.Amounts{Bytes: 101}, bytes)
	add(records.Amounts{Bytes: 60, Refs: 2}, "")
	add(records.Amounts{Bytes: 60}, bytes) // data that was just added counts, although nothing was measured again
	add(records.Amounts{Refs: -1}, "")
	add(records.Amounts{Refs: 1}, "")
	stored.Bytes, now = 1200, now.Add(2*fresh)
	add(records.Amounts{Bytes: 1}, bytes)
	add(records.Amounts{Bytes: -10}, "")
	stored.Bytes, now = 100, now.Add(2*fresh)
	add(records.Amounts{Bytes: 500}, "")
	for i := range 5 {
		if err := k.Request("NS"); (err != nil) != (i >= 3) {
			t.Errorf("request %d: got %v", i, err)
		}
	}
	if err := k.Request("other"); err != nil {
		t.Errorf("request of another namespace: got %v", err)
	}
	now = now.Add(time.Minute)
	if err := k.Request("ns"); err != nil {
		t.Errorf("request of the next minute: got %v", err)
	}
	for _, bad := range []string{"", "bytes", "bytes=0", "bytes=-1", "files=1"} {
		if err := new(Limits).Set(bad); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
	if err := (*Keeper)(nil).Add(t.Context(), "ns", records.Amounts{Bytes: 1}); err != nil || New(nil, Limits{}) != nil {
		t.Errorf("without quotas: got %v", err)
	}
}
