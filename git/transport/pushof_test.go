package transport

import (
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestPushOfKnownRef checks that a client that knows the object id of a ref can change it, over HTTP by a single
// request, but not if another client has changed it in the meantime.
func TestPushOfKnownRef(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		fx := makeRepo(t, filepath.Join(t.TempDir(), "from"), f)
		t.Run(f.String(), func(t *testing.T) {
			eachWay(t, f, func(t *testing.T, dir string, r *Remote) {
				results, err := push(t, r, PushRequest{Updates: []RefUpdate{{Name: "refs/afs/x", New: fx.first}},
					Pack: packing(fx.dir, fx.first.String())})
				wantKinds(t, results, err, done)
				reported, err := r.Refs(t.Context(), []string{"refs/afs/"})
				if err != nil || len(reported.List) != 1 {
					t.Fatalf("refs after the push: got %+v, %v, want one", reported, err)
				}
				for _, want := range []RejectKind{done, RejectMoved} {
					before := r.Stats()
					p, err := r.OpenPushOf(t.Context(), reported.List)
					if err != nil {
						t.Fatal(err)
					}
					if len(p.Refs) != 1 || p.Refs[0].Name != "refs/afs/x" || p.Format != f {
						t.Errorf("refs that the server reported: got %+v", p.Receiver)
					}
					results, err = p.Send(t.Context(), PushRequest{
						Updates: []RefUpdate{{Name: "refs/afs/x", Old: fx.first, New: fx.head}},
						Pack:    packing(fx.dir, fx.head.String(), "^"+fx.first.String()),
					})
					p.Close()
					wantKinds(t, results, err, want)
					if got := refOf(t, dir, "refs/afs/x"); got != fx.head.String() {
						t.Errorf("ref after the refused push: got %s, want %s", got, fx.head)
					}
					if now := r.Stats(); now.Requests-before.Requests != 1 {
						t.Errorf("requests of the push: got %d", now.Requests-before.Requests)
					}
				}
			})
		})
	}
}
