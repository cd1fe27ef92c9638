// Runs at the end of the job, even if a step has failed.
require("./step.js")("post");
