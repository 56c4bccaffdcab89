//! Files that jobs take and give, named by their content.
