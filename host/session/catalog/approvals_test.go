package catalog

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session/approval"
)

// TestApprovalsWithoutPolicyFile checks that a policy ref without the policy file grants nothing and hides no request.
func TestApprovalsWithoutPolicyFile(t *testing.T) {
	w := newWorld(t)
	far := w.far()
	s := w.session("s", far, map[string]string{"b": "new\n"})
	s.push()
	rev := Reviews{Catalog: w.Catalog}
	made, err := rev.SessionApprove(t.Context(), control.SessionApproveRequest{Of: "s", Op: control.ApproveRequest,
		Action: control.ApproveDelete, Actor: "ann"})
	w.must(err)
	gittest.Must(t, far, "update-ref", approval.PolicyRef, "main")
	reply, err := rev.SessionApprovals(t.Context(), control.SessionApprovalsRequest{Of: "s", To: far})
	w.must(err)
	if len(reply.Approvals) != 1 || reply.Approvals[0].ID != made.Approval.ID ||
		!strings.HasPrefix(reply.Approvals[0].Missing, "a valid policy: ") {
		t.Errorf("approvals: got %+v, want the request, which is not granted", reply.Approvals)
	}
	policy, err := rev.SessionPolicy(t.Context(), control.SessionPolicyRequest{Of: "s"})
	if err != nil || policy.Policy != "" || !strings.Contains(policy.Problem, "does not contain the file") {
		t.Errorf("policy: got %+v, %v", policy, err)
	}
}
