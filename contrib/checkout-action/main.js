// Only actions of this kind, and not composite ones, can run a step at the end of the job. The work is in checkout.sh.
require("./step.js")("main");
